"""Names that settings, nodes and pods share."""

from enum import Enum

# Ties a pod to the nodes of one pool.
POOL_LABEL = "eks-gpu-serving/pool"
# Ties the device plugin to the operating systems that come without one.
OPERATING_SYSTEM_LABEL = "eks-gpu-serving/operating-system"
# NVIDIA's own label, which its charts select nodes by.
GPU_PRESENT_LABEL = "nvidia.com/gpu.present"
# Key of the taint that keeps other pods off GPU nodes; also the name of the extended resource.
GPU_TAINT = "nvidia.com/gpu"


class OperatingSystem(str, Enum):
    """Both are the NVIDIA variants that EKS publishes."""

    AL2023 = "al2023"
    BOTTLEROCKET = "bottlerocket"
