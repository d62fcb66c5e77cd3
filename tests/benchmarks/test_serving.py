"""The serving benchmarks: what they compute, and that what they start is gone."""

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import measuring, peers, serving_burst, serving_overload, serving_rollout
from benchmarks.__main__ import NO_FIGURES, section
from benchmarks.children import ROOT, CaseFailed
from benchmarks.serving_chart import draw
from benchmarks.serving_host import serve_host
from benchmarks.serving_load import NO_ANSWER, Load, Request, per_second, quantile
from benchmarks.serving_models import make_model, most_at_once, settings
from benchmarks.serving_overload import overload_of
from benchmarks.serving_request_cost import ANSWER, DIRECT, alternate, bootstrap_interval, in_process
from benchmarks.serving_rollout import mixed_s
from ray_model_serving.contract.settings import ServingSettings

MODULES = ["serving_request_cost", "serving_burst", "serving_overload", "serving_rollout", "serving_memory"]


def request(sent_s: float, status: int, latency_s: float, version: str = "") -> Request:
    return Request(sent_s=sent_s, status=status, latency_s=latency_s, version=version)


def test_loads_at_once_are_counted_by_process_and_one_that_never_ends_stays(tmp_path: Path) -> None:
    log = tmp_path / "loads"
    events = [(1, 7, "begin"), (2, 8, "begin"), (3, 7, "end"), (4, 9, "begin"), (5, 6, "begin"), (6, 9, "end")]
    log.write_text("".join(json.dumps({"at": at, "pid": pid, "event": event}) + "\n" for at, pid, event in events))

    assert most_at_once(log) == 3, "8 never ended, so it loads beside 9 and 6"
    assert most_at_once(tmp_path / "none") == 0


def test_a_quantile_is_a_value_that_was_measured() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([float(number) for number in range(1, 101)], 0.99) == 99.0
    assert math.isnan(quantile([], 0.99))


def test_requests_count_in_the_second_in_which_they_ended() -> None:
    found = [request(0.0, 200, 0.5), request(0.9, 200, 0.2), request(1.0, 503, 0.1), request(5.0, 200, 0.1)]

    assert per_second(found, lambda one: one.ok, 0.0, 3) == [1, 1, 0]


def test_an_overload_tells_refusals_from_failures_and_counts_late_answers_out_of_the_throughput() -> None:
    found = [request(0.0, 200, 1.0), request(1.0, 200, 9.0), request(1.5, 503, 0.01), request(1.9, NO_ANSWER, 3.0)]
    told = overload_of(found, seconds=2.0)

    assert told["answered"] == 0.5, "one answer within two seconds; the other came after the load's end"
    assert told["answered_p99_ms"] == 9000
    assert (told["refused"], told["failed"]) == (0.25, 0.25)
    assert told["refused_p99_ms"] == 10


def test_both_versions_answer_between_the_first_new_and_the_last_old_answer() -> None:
    found = [request(0.0, 200, 1.0, "a"), request(1.0, 200, 1.0, "b"), request(2.0, 200, 2.5, "a")]

    assert mixed_s(found, "a", "b") == 2.5
    assert mixed_s(found[:1], "a", "b") == 0.0


def test_the_interval_covers_0_only_where_the_rounds_do_not_agree() -> None:
    low, high = bootstrap_interval([5.0, 6.0, 7.0, 5.5, 6.5])
    assert 5.0 <= low <= high <= 7.0

    low, high = bootstrap_interval([-3.0, 2.0, -1.0, 4.0, -2.0, 1.0])
    assert low < 0 < high


def test_requests_alternate_and_the_order_turns() -> None:
    order: list[str] = []
    cases = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    medians = alternate(cases, rounds=1, count=2)

    assert order[-4:] == ["a", "b", "b", "a"]
    assert {case: len(found) for case, found in medians.items()} == {"a": 1, "b": 1}


def test_the_cost_in_the_process_is_measured_on_the_real_service(tmp_path: Path) -> None:
    make_model(tmp_path / "model", predict_s=0, version="a", log=tmp_path / "loads")
    medians = asyncio.run(in_process(tmp_path / "model", rounds=1, count=5))

    assert medians[ANSWER][0] > medians[DIRECT][0] > 0
    assert most_at_once(tmp_path / "loads") == 1, "the load was logged from its begin to its end"


def test_ours_keeps_the_packages_defaults_where_nothing_is_said() -> None:
    given = settings(uri="s3://bench/model/", cache_root="/cache")
    model = ServingSettings.from_mapping(given).models[0]

    assert (given["models"][0]["limits"], given["models"][0]["autoscaling"]) == ({}, {})
    assert model.limits == type(model.limits)()


def test_the_burst_and_the_roll_out_give_both_sides_the_same_bounds(tmp_path: Path) -> None:
    class Store:
        capped_url = "http://127.0.0.1:1"

    given: Any = {"host": None, "store": Store(), "work": tmp_path, "mib": 8, "seconds": 1.0}
    burst = serving_burst.Stage(log=tmp_path / "loads", **given)
    ours, plain = (serving_burst.deployment(case, burst)["arguments"] for case in serving_burst.CASES)
    for limit in ("max_ongoing_requests", "max_queued_requests"):
        assert ours["limits"][limit] == plain[limit]
    assert ours["limits"]["max_batch_size"] == plain["batch"]["max_batch_size"]
    assert ours["max_replicas"] == plain["autoscaling_config"]["max_replicas"]
    for name, value in ours["autoscaling"].items():
        assert plain["autoscaling_config"][name] == value

    rollout = serving_rollout.Stage(**given)
    old, new = (serving_rollout.deployment("ours", version, rollout)["arguments"] for version in "ab")
    assert {name for name in old if old[name] != new[name]} == {"uri"}, "only the snapshot is new"


def test_no_limit_of_ours_is_tuned_for_the_overload(tmp_path: Path) -> None:
    assert serving_overload.deployment("ours", tmp_path)["arguments"]["limits"] == {}


def test_a_picture_that_can_not_be_drawn_costs_no_figures(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    def no_network(environment: object) -> str:
        raise CaseFailed("its environment can't be installed")

    monkeypatch.setattr(peers, "python_of", no_network)
    draw("title", {}, tmp_path / "burst.svg")

    assert "burst.svg is not drawn: its environment" in capsys.readouterr().err


@pytest.mark.parametrize("failure", [CaseFailed("no cgroup"), measuring.OursFailed("no cgroup")])
def test_a_benchmark_that_fails_leaves_the_others_their_place_on_the_page(failure: BaseException) -> None:
    def run(arguments: Namespace) -> str:
        raise failure

    module: Any = ModuleType("broken", "What it measures.")
    module.run, module.options = run, lambda: measuring.parser("", rounds=1)

    text = section(module, [])
    assert text.startswith("What it measures.\n\nRun of ")
    assert text.endswith(f"\n\n{NO_FIGURES} no cgroup")


@pytest.mark.parametrize("module", MODULES)
def test_every_serving_benchmark_explains_itself(module: str) -> None:
    code = f"import sys; from benchmarks import {module} as m; assert m.__doc__; m.options().parse_args(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert "--rounds" in done.stdout


@pytest.mark.slow
def test_a_host_serves_ours_and_plain_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """UR-031: its Ray has its own token and home directory."""
    model = tmp_path / "model"
    make_model(model, predict_s=0, version="a", log=tmp_path / "loads")
    ours = {"uri": f"file://{model}/", "cache_root": str(tmp_path / "cache")}
    with serve_host() as host:
        host.call("deploy", name="ours", factory="benchmarks.serving_models:ours", arguments=ours)
        host.call("deploy", name="plain", factory="benchmarks.serving_plain:plain", arguments={"directory": str(model)})
        for name in ("ours", "plain"):
            found = Load(url=host.url(f"/{name}"), seconds=0.5, clients=2).run()
            assert found
            assert {(one.status, one.version) for one in found} == {(200, "a")}, f"{name} answers like the other"
        pids = [*host.call("pids", name="ours"), *host.call("pids", name="plain")]
        homes = {Path(f"/proc/{pid}/environ").read_bytes().split(b"HOME=")[1].split(b"\0")[0].decode() for pid in pids}
        with pytest.raises(CaseFailed, match="no_such_function"):
            host.call("run", function="benchmarks.serving_plain:no_such_function", arguments={})

    assert len(pids) == 2
    for _ in range(100):  # a replica ends when it notices that its raylet is gone
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            break
        time.sleep(0.1)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert homes.isdisjoint({os.environ.get("HOME")})
    assert not any(Path(home).exists() for home in homes), "what Ray wrote went with it"
