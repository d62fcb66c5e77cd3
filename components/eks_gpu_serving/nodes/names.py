"""The operating systems of GPU nodes, by the names that settings use."""

from enum import Enum


class OperatingSystem(str, Enum):
    """Both are the NVIDIA variants that EKS publishes."""

    AL2023 = "al2023"
    BOTTLEROCKET = "bottlerocket"
