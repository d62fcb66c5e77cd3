"""The parts of a batch job that need no Ray: what to do, passes, bad rows, files that appear whole."""

import dataclasses
import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_model_serving.contract.settings import Limits
from ray_model_serving.contract.uris import BadUriError
from ray_model_serving.model import ServedModel
from ray_model_serving.serving.batch.places import Place
from ray_model_serving.serving.batch.plan import InputFile, OtherBatchError, Work, check_same, passes, plan
from ray_model_serving.serving.batch.records import RecordsError, read_blocks, writer
from ray_model_serving.serving.batch.rows import Answers, answer
from ray_model_serving.store.errors import BucketNotFoundError

WORK = Work(
    model_class="m:C", snapshot_id="a" * 32, settings_hash="h", column="x", output_column="y", on_bad_row="fail"
)


def file(name: str, version: str = "1") -> InputFile:
    return InputFile(name=name, size_bytes=3, version=version)


def test_done_is_what_has_a_record_of_this_version_and_an_output():
    recorded = {name: {"input": asdict(file(name))} for name in ("same", "changed", "lost")}
    inputs = [file("same"), file("changed", "2"), file("lost"), file("new")]
    found = plan(inputs, recorded, outputs=["same", "changed", "new"])
    assert found.done == (file("same"),)
    assert [item.name for item in found.todo] == ["changed", "lost", "new"], "an output without a record proves nothing"


@pytest.mark.parametrize("field", [item.name for item in dataclasses.fields(Work)])
def test_a_folder_of_another_work_is_refused_and_the_difference_named(field):
    check_same(WORK.to_json(), WORK, ["a"], "file:///o")
    with pytest.raises(OtherBatchError, match=f"{field} was 'other'"):
        check_same({**WORK.to_json(), field: "other"}, WORK, [], "file:///o")


def test_a_folder_with_files_of_somebody_else_is_refused():
    check_same(None, WORK, [], "file:///o")
    with pytest.raises(OtherBatchError, match=r"holds 'theirs\.txt'"):
        check_same(None, WORK, ["theirs.txt"], "file:///o")


@given(st.lists(st.integers(1, 10)), st.integers(1, 5), st.none() | st.integers(10, 20))
def test_passes_keep_both_bounds_and_are_no_more_than_needed(costs: list[int], size: int, most: int | None):
    found = [costs[part] for part in passes(costs, size, most)]
    assert [cost for part in found for cost in part] == costs
    assert all(0 < len(part) <= size and (most is None or sum(part) <= most) for part in found)
    for part, following in itertools.pairwise(found):
        assert len(part) == size or (most is not None and sum(part) + following[0] > most), (
            "each is as full as it can be"
        )


class Doubles(ServedModel):
    """Refuses text; a number is its own cost; has memory for ``room`` inputs."""

    room = 100

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []
        self.freed = 0

    def build(self, directory: Path) -> Any:
        raise NotImplementedError

    def warm_up(self) -> None:
        raise NotImplementedError

    def problem_with(self, value: Any) -> str | None:
        return "is text" if isinstance(value, str) else None

    def cost(self, value: Any) -> int:
        return value

    def predict_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        self.seen.append(list(inputs))
        if len(inputs) > self.room:
            raise MemoryError("no room")
        return [2 * value for value in inputs]

    def predict(self, inputs: list[Any]) -> Sequence[Any]:
        return self.predict_batch(inputs)

    def free(self) -> None:
        self.freed += 1


def through(model: Doubles, values: list[Any], problems: list[str | None] | None = None) -> Answers:
    worker: Any = model
    limits = Limits(max_batch_size=4, max_batch_cost=10)
    given = problems or [None] * len(values)
    return answer(values, given, served=model, worker=worker, limits=limits, batch_size=4)


def test_bad_rows_are_found_before_the_model_and_the_others_keep_their_places():
    model = Doubles()
    found = through(model, [1, "a", 9, 11, 3, None], [None, None, None, None, None, "is not JSON"])
    assert model.seen == [[1, 9], [3]], "by cost, without what is bad"
    assert found.outputs == [2, None, 18, None, 6, None]
    assert found.problems[1] == "is text"
    assert found.problems[3] == "costs 11, one forward pass takes at most limits.max_batch_cost 10"
    assert found.problems[5] == "is not JSON"


@pytest.mark.parametrize(("room", "outputs"), [(2, [2, 4, 6, 2]), (1, [None] * 4)])
def test_a_pass_without_memory_is_tried_as_two_halves_and_then_its_rows_are_bad(room, outputs):
    model = Doubles()
    model.room = room
    found = through(model, [1, 2, 3, 1])
    assert found.outputs == outputs
    assert model.freed
    assert all(
        (problem is None) == (output is not None) for problem, output in zip(found.problems, found.outputs, strict=True)
    )


def test_an_output_is_not_there_until_it_is_whole_and_not_after_an_error(tmp_path):
    place = Place(f"file://{tmp_path}", None)

    def fail() -> None:
        with place.whole_file("deep/a.jsonl") as path:
            path.write_text("half")
            assert place.names() == []
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert place.names() == []
    with place.whole_file("deep/a.jsonl") as path:
        path.write_text("whole")
    assert place.names() == ["deep/a.jsonl"]


def test_an_error_leaves_no_half_upload_in_the_store(bucket):
    place = Place(f"s3://{bucket.name}/out", bucket.s3.endpoint_url)

    def fail() -> None:
        with place.whole_file("a.jsonl") as path:
            path.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert place.names() == []
    with place.whole_file("a.jsonl") as path:
        path.write_text('{"x": 1}\n')
    (found,) = Place(f"s3://{bucket.name}/out/a.jsonl", bucket.s3.endpoint_url).inputs()
    assert (found.name, found.size_bytes) == ("a.jsonl", 9)
    assert place.open("a.jsonl").read() == b'{"x": 1}\n'
    assert place.read_json("none.json") is None


def test_a_bucket_that_is_not_there_is_the_stores_error(s3):
    with pytest.raises(BucketNotFoundError):
        Place("s3://no-such-bucket-here/x", s3.endpoint_url).inputs()


@pytest.mark.parametrize("uri", ["ftp://x/y", "s3://", "file://relative/x", "/x", "file:///a/../b"])
def test_other_uris_are_refused(uri):
    with pytest.raises(BadUriError):
        Place(uri, None)


def test_hidden_files_and_other_endings_are_not_input(tmp_path):
    for name in ("a.parquet", "b.jsonl", "_SUCCESS", "_batch/files/x.jsonl", ".c.jsonl", "d.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [found.name for found in Place(f"file://{tmp_path}", None).inputs()] == ["a.parquet", "b.jsonl"]


def rewritten(tmp_path: Path, table: pa.Table, outputs: list[Any], keep: list[bool]) -> pa.Table:
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(table, source)
    with source.open("rb") as file, writer(target, "in.parquet", source, "y") as write:
        start = 0
        for block in read_blocks(file, "in.parquet", "x", 2):
            part = slice(start, start + len(block.values))
            write(block, outputs[part], keep[part])
            start = part.stop
    return pq.read_table(target)


def test_a_parquet_column_gets_its_type_from_the_first_output(tmp_path):
    table = pa.table({"x": [1, 2, 3, 4, 5], "k": ["a", "b", "c", "d", "e"]})
    outputs = [None, None, None, [0.5, 1.0], [2.0]]
    found = rewritten(tmp_path, table, outputs, [True, True, False, True, True])
    assert found.schema.field("y").type == pa.list_(pa.float64())
    assert found.to_pydict() == {"x": [1, 2, 4, 5], "k": ["a", "b", "d", "e"], "y": [None, None, [0.5, 1.0], [2.0]]}


def test_outputs_of_several_types_do_not_fit_one_parquet_column(tmp_path):
    with pytest.raises(RecordsError, match="do not fit"):
        rewritten(tmp_path, pa.table({"x": [1, 2, 3]}), [1, 2, "text"], [True] * 3)


def test_what_is_not_parquet_is_told_by_name():
    with pytest.raises(RecordsError, match=r"a\.parquet is not a Parquet file"):
        next(read_blocks(io.BytesIO(b"no"), "a.parquet", "x", 2))


def test_lines_that_are_no_rows_are_bad_and_empty_ones_nothing():
    text = b'{"x": 1}\n\n[1]\n{"y": 2}\n{"x":\n\xff\n'
    blocks = list(read_blocks(io.BytesIO(text), "a.jsonl", "x", 3))
    problems = [problem for block in blocks for problem in block.problems]
    assert [len(block.values) for block in blocks] == [3, 2]
    assert problems[:3] == [None, "is a list, must be an object", "has no 'x'"]
    assert all(problem and "is not JSON" in problem for problem in problems[3:])
    assert json.dumps(problems), "they go into the record"
