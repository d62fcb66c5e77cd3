# pyright: reportPrivateUsage=false
# Ray has no public key-value store; this is the one that its own libraries use (Ray 2.60).
"""Ray's side of a replica that asks to be replaced: its place in the deployment, and the lease in Ray's store."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from ray import serve
from ray.experimental import internal_kv

from ray_model_serving.contract.deployments import DRAIN_MARGIN_S
from ray_model_serving.contract.memory import actor_memory_bytes
from ray_model_serving.contract.settings import ModelSettings, ServingSettings
from ray_model_serving.host_memory import resident
from ray_model_serving.serving.leak import LeakMonitor, may_leave
from ray_model_serving.serving.lease import Lease

_NAMESPACE = "ray-model-serving"
# Serve takes a replica for unhealthy after three failed checks, ten seconds apart (Ray 2.60).
_NOTICED_S = 40.0


class GcsKeyValue:
    """The key-value store of the cluster's control plane."""

    def add(self, key: str, value: str) -> bool:
        return not internal_kv._internal_kv_put(key, value, overwrite=False, namespace=_NAMESPACE)

    def put(self, key: str, value: str) -> None:
        internal_kv._internal_kv_put(key, value, overwrite=True, namespace=_NAMESPACE)

    def get(self, key: str) -> str | None:
        value = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
        return value.decode() if value else None

    def keys(self, prefix: str) -> Sequence[str]:
        return [key.decode() for key in internal_kv._internal_kv_list(prefix, namespace=_NAMESPACE)]

    def delete(self, key: str) -> None:
        internal_kv._internal_kv_del(key, namespace=_NAMESPACE)


class ReplicaTurn:
    """Whether this replica may leave now: it has the deployment's lease, and enough others are running."""

    def __init__(self, settings: ServingSettings, model: ModelSettings) -> None:
        replica = serve.get_replica_context().replica_id
        self._application = replica.deployment_id.app_name
        self._deployment = replica.deployment_id.name
        self._min_replicas = model.min_replicas
        self._lease = Lease(
            GcsKeyValue(),
            f"leave/{self._application}/{self._deployment}",
            owner=replica.unique_id,
            # Until it is noticed, has finished what runs, and its successor has loaded.
            lasts_s=_NOTICED_S + model.limits.request_deadline_s + DRAIN_MARGIN_S + settings.load_deadline_s,
        )

    def take(self) -> bool:
        if not self._lease.take():
            return False
        deployment = serve.status().applications[self._application].deployments[self._deployment]
        # Declared with an enum of texts, and plain texts where it comes from the controller (Ray 2.60).
        states = cast("Mapping[str, int]", deployment.replica_states)
        if may_leave(states, min_replicas=self._min_replicas):
            return True
        self._lease.give_back()
        return False


def watch_for_leaks(
    settings: ServingSettings, model: ModelSettings, ongoing: Callable[[], int]
) -> tuple[LeakMonitor, "asyncio.Task[None]"]:
    """Watch this process from now on; keep the task, and cancel it when the replica ends."""
    monitor = LeakMonitor(actor_memory_bytes(model), read=resident, ongoing=ongoing, turn=ReplicaTurn(settings, model))
    return monitor, asyncio.create_task(monitor.run())
