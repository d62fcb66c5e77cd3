"""Rounds, medians and tables of the benchmarks."""

import subprocess
import sys

import pytest

from benchmarks.__main__ import LIMITS, page, sections_of
from benchmarks.children import ROOT, CaseFailed, Child, last_words, run_child
from benchmarks.fetching import parse_size
from benchmarks.killed_download import Killed
from benchmarks.measuring import Spread, failure_rows, interleave, selected, table
from benchmarks.store_to_module import columns

MODULES = ["store_to_module", "replicas", "load_memory", "warm_load", "killed_download"]


def test_a_spread_is_median_and_range() -> None:
    assert f"{Spread.of([3.0, 1.0, 8.0]):.1f}" == "3.0 (1.0 to 8.0)"


def test_rounds_are_interleaved_and_the_order_turns() -> None:
    order: list[str] = []

    def measure(case: str) -> int:
        order.append(case)
        return len(order)

    found = interleave(["a", "b", "c"], 2, measure)

    assert order == ["a", "b", "c", "b", "c", "a"], "a case that always follows the same one inherits its traces"
    assert found.results == {"a": [1, 6], "b": [2, 4], "c": [3, 5]}


def test_a_case_that_fails_once_has_no_result_and_the_others_go_on() -> None:
    calls: list[str] = []

    def measure(case: str) -> float:
        calls.append(case)
        if case == "bad" and calls.count("bad") == 2:
            raise CaseFailed("no | answer")
        return 1.0

    found = interleave(["good", "bad"], 4, measure)

    assert found.results == {"good": [1.0] * 4}
    assert found.failures == {"bad": "no | answer"}
    assert calls.count("bad") == 2
    assert table(["case", "s", "n"], failure_rows(found.failures, 3)).splitlines()[-1] == "| bad | no / answer |  |"


def test_a_failure_of_ours_ends_the_run() -> None:
    def measure(case: str) -> float:
        raise CaseFailed(f"{case} broke")

    with pytest.raises(SystemExit, match="ours x 2 broke"):
        interleave(["ours x 2"], 1, measure)


def test_cases_are_chosen_by_a_part_of_their_name_and_unknown_ones_are_refused_with_the_list() -> None:
    assert selected(["ours", "boto3", "s3fs"], "3") == ["boto3", "s3fs"]
    with pytest.raises(SystemExit, match="ours; boto3"):
        selected(["ours", "boto3"], "nothing")


def test_sizes_are_mib_or_shards_of_mib() -> None:
    assert parse_size("64") == (1, 64)
    assert parse_size("4x1024") == (4, 1024)
    for wrong in ("x64", "4x", "large", ""):
        with pytest.raises(SystemExit, match="give MiB"):
            parse_size(wrong)


def test_columns_say_size_cap_and_who_runs() -> None:
    first, second, sharded = columns("64,64/uncapped,2x64", 5, ["ours", "s3fs"], full=False)
    all_of_them = columns("2x64/uncapped", 5, ["ours", "s3fs"], full=True)[0]

    assert (first.capped, second.capped) == (True, False)
    assert first.cases == ("ours", "s3fs")
    assert (second.cases, sharded.cases, all_of_them.cases) == (("ours",), ("ours", "s3fs"), ("ours", "s3fs"))
    assert (first.rounds, sharded.rounds, all_of_them.rounds) == (5, 3, 5)
    with pytest.raises(SystemExit, match="uncapped"):
        columns("64/fast", 5, ["ours"], full=False)


def test_bytes_sent_twice_are_those_beyond_one_model() -> None:
    assert Killed(before=0.5, unread=0.0, after=0.5).again == 0
    assert Killed(before=0.5, unread=0.0, after=1.0).again == 0.5
    assert Killed(before=0.5, unread=0.25, after=0.75).again == 0, "what nobody has read is not read twice"


def test_a_run_of_some_sections_leaves_the_others_on_the_page_and_the_limits_at_its_end() -> None:
    first = page({"Warm load": "one\n\n| a |", "Replicas of one node": "two"})
    again = page({**sections_of(first), "Warm load": "new"})

    assert first.startswith("# Benchmarks")
    assert again == page({"Replicas of one node": "two", "Warm load": "new"}), "in the order of the benchmarks"
    assert again.endswith(LIMITS), "figures without their limits mislead"
    assert sections_of(again) == {"Replicas of one node": "two", "Warm load": "new"}


def test_a_child_that_fails_says_its_last_words() -> None:
    with pytest.raises(CaseFailed, match="invalid choice"):
        run_child("benchmarks.clients", ["nobody", "http://127.0.0.1:1", "m", "d"])
    assert last_words("a\n b \n\n") == "b"


def test_a_child_and_its_pipes_are_gone_after_the_block() -> None:
    with Child("http.server", ["0", "--bind", "127.0.0.1"]) as child:
        assert child.pid > 0
    child.kill()  # nothing is left to kill, and that is no error


@pytest.mark.parametrize("module", MODULES)
def test_every_benchmark_explains_itself(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert "--rounds" in done.stdout
