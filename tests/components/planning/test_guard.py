"""The memory guard against what the plan counts on: a replica that serves as planned is never told to refuse."""

from typing import Any

import pytest

from eks_gpu_serving.planning.plan import RefusedError, plan
from eks_gpu_serving.settings import StackSettings


def refusal(mapping: dict[str, Any]) -> str:
    with pytest.raises(RefusedError) as caught:
        plan(StackSettings.from_mapping(mapping))
    return str(caught.value)


def test_memory_that_requests_may_take_is_not_refused_by_the_guard(small_stack: Any) -> None:
    # A process 0.5, CUDA 1 and requests 0.125 GiB; shared memory 0.5625 and Ray 1.25 GiB. The load is over by then.
    text = refusal(small_stack(pool={"pod_memory_gib": 6}, serving={"memory_guard_fraction": 0.5}))
    assert "take up to 3.44 GiB of a worker pod's 6.00 GiB" in text
    assert "serving.memory_guard_fraction 0.5 refuses work from 3.00 GiB on; raise it, raise pod_memory_gib" in text
    enough = small_stack(pool={"pod_memory_gib": 6}, serving={"memory_guard_fraction": 0.58})
    assert plan(StackSettings.from_mapping(enough)).serving.memory_guard_fraction == 0.58


@pytest.mark.parametrize(
    ("peak_gib", "num_gpus", "loads", "taken"),
    [
        (3, 0.5, 1, "8.06"),  # two replicas of 1.625, one of them loading
        (0.5, 0.25, 1, "8.81"),
        (0.5, 0.25, 3, "9.81"),
        (0.5, 0.25, 9, "9.81"),  # who serves does not load
    ],
)
def test_the_loads_that_may_go_on_beside_others_are_counted(
    peak_gib: float, num_gpus: float, loads: int, taken: str, small_stack: Any
) -> None:
    model = {"host_peak_gib": peak_gib, "num_gpus": num_gpus, "num_cpus": 0.5, "weights_gib": 0.5}
    serving = {"memory_guard_fraction": 0.5, "loads_at_once_per_node": loads}
    assert f"take up to {taken} GiB" in refusal(small_stack(model=model, serving=serving))


def test_what_a_load_on_the_cpu_converts_stays(small_stack: Any) -> None:
    model = {"device": "cpu", "num_gpus": 0, "weights_gib": 2, "dtype": "float16", "keep_converted": False}
    assert "take up to 4.54 GiB of a worker pod's 8.00 GiB" in refusal(
        small_stack(pool={"pod_memory_gib": 8}, model=model, serving={"memory_guard_fraction": 0.5})
    )
