"""The autoscaling policy: as a pure function, over simulated days, and as Ray Serve calls it."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve._private.config import DeploymentConfig
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig

from ray_model_serving.contract.deployments import deployment_options
from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.serving.autoscaling import HoldWhileStarting, Load, Waiting, decide

MAX_START_S = 600.0


def load(**changes: Any) -> Load:
    usual: dict[str, Any] = {
        "ongoing": 0.0,
        "target_ongoing_requests": 2.0,
        "running": 1,
        "target": 1,
        "least": 1,
        "most": 8,
    }
    values: dict[str, Any] = {**usual, "now_s": 1000.0, **changes}
    return Load(**values)


def replicas(now: Load, waiting: Waiting | None = None, max_step: int = 4) -> int:
    return decide(now, waiting, max_step=max_step, max_start_s=MAX_START_S)[0]


@pytest.mark.parametrize(
    ("ongoing", "wanted"), [(0.0, 1), (2.0, 1), (2.000_000_01, 1), (2.5, 2), (9.0, 5), (1000.0, 5)]
)
def test_it_asks_for_ongoing_over_target_by_a_bounded_step(ongoing, wanted):
    assert replicas(load(ongoing=ongoing)) == wanted


def test_nothing_is_added_while_earlier_ones_start_and_a_surplus_may_go_meanwhile():
    assert replicas(load(ongoing=100, running=1, target=4)) == 4
    assert replicas(load(ongoing=2, running=2, target=4)) == 1


def test_a_start_that_never_ends_holds_nobody_up_for_ever():
    now = load(ongoing=100, running=1, target=4)
    _, waiting = decide(now, None, max_step=4, max_start_s=MAX_START_S)
    late = load(ongoing=100, running=1, target=4, now_s=now.now_s + MAX_START_S)
    assert replicas(late, waiting) == 5, "one more, not a step of four"
    one_came = load(ongoing=100, running=2, target=4, now_s=late.now_s)
    assert replicas(one_came, waiting) == 4, "loads that take turns on a node come further: each starts the clock again"
    one_died = load(ongoing=100, running=0, target=4, now_s=late.now_s)
    assert decide(one_died, waiting, max_step=4, max_start_s=MAX_START_S)[1] == waiting


def test_without_traffic_nothing_is_added():  # UR-020
    for running, target in ((0, 0), (0, 1), (1, 1), (1, 4), (4, 4)):
        assert replicas(load(running=running, target=target, least=0)) <= target


CONFIG: dict[str, Any] = {
    "min_replicas": 0,
    "max_replicas": 32,
    "target_ongoing_requests": 2.0,
    "look_back_period_s": 30.0,
    "upscale_delay_s": 30.0,
    "downscale_delay_s": MAX_START_S,
}


class Simulated:
    """Serve's controller around the policy, with replicas that take ``start_s``; a tick is ten seconds."""

    TICK_S = 10.0

    def __init__(self, *, start_s: float, max_step: int, least: int = 1) -> None:
        self.config = AutoscalingConfig.model_validate({**CONFIG, "min_replicas": least})
        # Serve's own wrapper, which applies the delays: what is tested is what runs in the controller.
        self.policy = _apply_autoscaling_config(HoldWhileStarting(max_step=max_step, max_start_s=MAX_START_S))
        self.start_s, self.least = start_s, least
        self.now, self.target, self.running, self.state = 0.0, least, least, {}
        self.starts: list[float] = []

    def tick(self, ongoing: float) -> None:
        self.now += self.TICK_S
        ended = [start for start in self.starts if self.now - start >= self.start_s]
        self.starts = self.starts[len(ended) :]
        self.running += len(ended)
        context: Any = SimpleNamespace(
            total_num_requests=ongoing,
            config=self.config,
            current_num_replicas=self.running,
            target_num_replicas=self.target,
            capacity_adjusted_min_replicas=self.least,
            capacity_adjusted_max_replicas=32,
            current_time=None,
            policy_state=self.state,
        )
        with pytest.MonkeyPatch.context() as clock:
            clock.setattr("time.time", lambda: self.now)
            wanted, self.state = self.policy(context)
        wanted = max(self.least, min(int(wanted), 32))  # as Serve does after the policy
        if wanted > self.target:
            self.starts += [self.now] * (wanted - self.target)
        for _ in range(self.target - wanted):  # those that start go first, as in Serve
            if self.starts:
                self.starts.pop()
            else:
                self.running -= 1
        self.target = wanted


@settings(max_examples=40, deadline=None)
@given(
    trace=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 12)), min_size=1, max_size=8),
    start_s=st.sampled_from([10.0, 60.0, 300.0]),
    max_step=st.integers(1, 6),
)
def test_over_any_traffic_steps_are_bounded_and_none_is_taken_while_replicas_start(trace, start_s, max_step):
    cluster = Simulated(start_s=start_s, max_step=max_step)
    for ongoing, ticks in trace:
        for _ in range(ticks):
            before, starting = cluster.target, len(cluster.starts)
            still = [start for start in cluster.starts if cluster.now + cluster.TICK_S - start < start_s]
            cluster.tick(ongoing)
            added = cluster.target - before
            assert added <= max_step
            assert not (added > 0 and still), f"{added} more were asked for while {starting} started"
            assert cluster.least <= cluster.target <= 32


@settings(max_examples=40, deadline=None)
@given(ongoing=st.integers(0, 60), start_s=st.sampled_from([10.0, 300.0]), max_step=st.integers(1, 6))
def test_under_constant_load_it_arrives_and_stays(ongoing, start_s, max_step):  # UR-021
    cluster = Simulated(start_s=start_s, max_step=max_step)
    seen: list[int] = []
    for _ in range(1500):
        cluster.tick(ongoing)
        seen.append(cluster.target)
    assert seen == sorted(seen), "it only ever went up"
    assert seen[-1] == cluster.running == max(1, -(-ongoing // 2))


def test_from_zero_one_replica_starts_at_once_and_the_rest_when_it_runs():  # UR-022
    cluster = Simulated(start_s=300.0, max_step=4, least=0)
    for _ in range(50):
        cluster.tick(0)
    assert cluster.target == 0, "no traffic wakes nothing"
    cluster.tick(20)
    assert cluster.target == 1
    for _ in range(25):
        cluster.tick(20)
        assert cluster.target == 1


def options(make_args, **model: Any) -> dict[str, Any]:
    return deployment_options(ServingSettings.from_mapping(make_args(model)).models[0])


def test_serve_reads_every_key_and_makes_the_policy_in_its_controller(make_args):
    config: Any = options(make_args, autoscaling={"max_step": 2, "downscale_delay_s": 900.0})["autoscaling_config"]
    assert set(config) <= set(AutoscalingConfig.model_fields), "a key that Serve does not know is ignored silently"
    sent = DeploymentConfig(autoscaling_config=AutoscalingConfig(**config)).to_proto_bytes()
    read = DeploymentConfig.from_proto_bytes(sent).autoscaling_config
    assert read is not None
    assert read.policy.policy_kwargs == {"max_step": 2, "max_start_s": 900.0}
    policy = _resolve_policy_callable(read.policy)
    assert type(policy).__name__ == "HoldWhileStarting"


def test_no_option_caps_replicas_on_a_node(make_args):  # UR-012
    assert "max_replicas_per_node" not in options(make_args), "the cluster's autoscaler adds no node for it"


def test_a_policy_that_cannot_be_imported_is_refused_at_deploy(make_args):
    config: Any = options(make_args)["autoscaling_config"]
    config["policy"]["policy_function"] = "ray_model_serving.serving.autoscaling:Gone"
    with pytest.raises(AttributeError, match="Gone"):
        AutoscalingConfig(**config)


@pytest.mark.parametrize("kwargs", [{"max_step": 0, "max_start_s": 1.0}, {"max_step": 1, "max_start_s": 0.0}])
def test_arguments_that_would_stop_all_growth_are_refused(kwargs):
    with pytest.raises(ValueError, match="max_step"):
        HoldWhileStarting(**kwargs)


def test_the_controller_imports_neither_torch_nor_ray_for_it():
    code = "import sys, ray_model_serving.serving.autoscaling; assert not {'torch', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
