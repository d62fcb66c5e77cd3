"""The memory model: the parts of a pod add up to its limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_model_serving.contract.memory import (
    CUDA_CONTEXT_BYTES,
    CUDA_HOST_BYTES,
    GIB,
    MIB,
    RAY_KILL_THRESHOLD,
    actor_memory_bytes,
    default_host_peak_bytes,
    needed_device_bytes,
    needed_pod_bytes,
    split_pod,
    usable_device_bytes,
)
from ray_model_serving.contract.settings import Device, Dtype, Limits, ModelSettings

_SIZES = st.integers(0, 2**40)


def model(device: Device = Device.CPU, **changes: int) -> ModelSettings:
    return ModelSettings(
        name="m",
        route="/m",
        model_class="m:M",
        uri="s3://b/m/",
        device=device,
        num_gpus=1 if device is Device.CUDA else 0,
        weights_bytes=GIB,
        host_peak_bytes=changes.get("host_peak_bytes", 0),
        request_bytes=changes.get("request_bytes", 0),
        limits=Limits(max_ongoing_requests=4),
    )


@given(_SIZES, _SIZES, _SIZES)
def test_the_parts_of_a_pod_add_up_to_its_limit_and_none_is_negative(actors: int, mapped: int, surplus: int):
    limit = needed_pod_bytes(actors, mapped) + surplus
    pod = split_pod(limit, actors, mapped)
    parts = (pod.object_store_bytes, pod.system_reserve_bytes, pod.actors_bytes, pod.mapped_weights_bytes)
    assert sum(parts) == pod.limit_bytes == limit
    assert min(parts) >= 0


@given(_SIZES, _SIZES)
def test_what_is_needed_stays_below_rays_kill_threshold(actors: int, mapped: int):
    limit = needed_pod_bytes(actors, mapped)
    assert limit % MIB == 0
    assert actors + mapped < limit * RAY_KILL_THRESHOLD


def test_a_limit_below_the_need_is_refused():
    with pytest.raises(ValueError, match="below the needed"):
        split_pod(needed_pod_bytes(GIB) - 1, GIB)


def test_an_actor_reserves_its_load_peak_and_the_requests_it_works_on():
    # UR-002
    base = actor_memory_bytes(model())
    assert actor_memory_bytes(model(host_peak_bytes=7 * GIB)) - base == 7 * GIB
    assert actor_memory_bytes(model(request_bytes=MIB)) - base == 4 * MIB
    assert actor_memory_bytes(model(Device.CUDA)) - base == CUDA_HOST_BYTES
    assert isinstance(base, int), "Ray takes whole bytes only"


def test_a_conversion_needs_its_weights_and_a_mapped_load_next_to_nothing():
    assert default_host_peak_bytes(GIB, Dtype.FLOAT16) > GIB
    assert default_host_peak_bytes(GIB, Dtype.AUTO) < 0.2 * GIB


def test_each_process_on_a_gpu_pays_for_its_own_context():
    assert needed_device_bytes([GIB, GIB]) == 2 * GIB + 2 * CUDA_CONTEXT_BYTES
    assert usable_device_bytes(24 * GIB) < 24 * GIB
