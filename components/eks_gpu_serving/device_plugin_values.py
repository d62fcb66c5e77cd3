"""Helm values of NVIDIA's device plugin: pure, so that the rendered documents and the release are the same."""

from collections.abc import Iterable
from typing import Any

from eks_gpu_serving.nodes.names import GPU_TAINT, OPERATING_SYSTEM_LABEL, OperatingSystem
from eks_gpu_serving.nodes.operating_systems import OPERATING_SYSTEMS
from eks_gpu_serving.planning.capacity import PoolPlan


def systems_without_plugin() -> tuple[OperatingSystem, ...]:
    """Operating systems whose images do not advertise their GPUs by themselves."""
    return tuple(system for system, facts in OPERATING_SYSTEMS.items() if not facts.brings_device_plugin)


def needs_device_plugin(pools: Iterable[PoolPlan]) -> bool:
    """Whether a stack of these pools has nodes that would advertise no GPU without the plugin."""
    return any(pool.operating_system in systems_without_plugin() for pool in pools)


def device_plugin_values() -> dict[str, Any]:
    """Values of the ``nvidia-device-plugin`` chart 0.18.

    It runs on GPU nodes of ours whose image brings no plugin: a second one on Bottlerocket would fight over kubelet's
    socket. Node feature discovery, which the chart's own affinity waits for, is not installed.
    """
    on_these = {
        "key": OPERATING_SYSTEM_LABEL,
        "operator": "In",
        "values": [system.value for system in systems_without_plugin()],
    }
    terms = {"nodeSelectorTerms": [{"matchExpressions": [on_these]}]}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "tolerations": [{"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "system-node-critical",
        # The plan keeps this much of each GPU node for daemon sets.
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}},
        "gfd": {"enabled": False},
        "nfd": {"enabled": False},
    }
