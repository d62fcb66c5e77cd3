"""Whoever waits for a request waits longer than the one below: an end in order loses nothing."""

import pytest

from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.deployments import deployment_options


@pytest.mark.parametrize("request_deadline_s", [1.0, 30.0, 600.0])
def test_request_proxy_replica_and_pod_end_in_that_order(small_stack, request_deadline_s: float) -> None:
    limits = {"request_deadline_s": request_deadline_s}
    capacity = plan(StackSettings.from_mapping(small_stack(model={"limits": limits})))
    times = capacity.timeouts
    options = deployment_options(capacity.models[0].settings)
    graceful_s = options["graceful_shutdown_timeout_s"]
    assert isinstance(graceful_s, float)
    assert request_deadline_s < times.proxy_request_s, "the replica's own refusal says more than the proxy's"
    assert times.proxy_request_s <= graceful_s, "Serve does not kill a replica whose request may still be answered"
    assert graceful_s < times.termination_grace_s, "the kubelet does not kill a pod whose replicas still drain"
