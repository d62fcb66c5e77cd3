"""What a batch job has to do: pure functions over listings and the records of earlier runs."""

import hashlib
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from ray_model_serving.contract.errors import ModelServingError

STATE = "_batch/"
"""Below the output: ``job.json``, one record a file, and work in progress. Readers of data folders skip a name that
begins with an underscore."""
ENDINGS = (".parquet", ".jsonl", ".ndjson")


class OtherBatchError(ModelServingError):
    """An output folder that something else made: another model, other options, or no batch job at all."""

    kind = "other_batch"


class OnBadRow(str, Enum):
    """What happens to a row that the model can't answer."""

    FAIL = "fail"
    SKIP = "skip"
    KEEP = "keep"


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One input as it is now; ``name`` is relative to the input folder and names the output, too."""

    name: str
    size_bytes: int
    version: str
    """The store's ETag; for a file its time of change in nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the rows go through, in plain values. Outputs of two different ones are never mixed in a folder."""

    model_class: str
    snapshot_id: str
    settings_hash: str
    column: str
    output_column: str
    on_bad_row: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Files to compute, and those whose output is there already."""

    todo: tuple[InputFile, ...]
    done: tuple[InputFile, ...]


def plan(inputs: Sequence[InputFile], records: Mapping[str, Mapping[str, Any]], outputs: Iterable[str]) -> Plan:
    """A file is done when its record is of this version of the input and its output is there."""
    there = set(outputs)

    def done(file: InputFile) -> bool:
        record = records.get(file.name, {})
        return file.name in there and record.get("input") == asdict(file)

    return Plan(
        todo=tuple(file for file in inputs if not done(file)), done=tuple(file for file in inputs if done(file))
    )


def check_same(before: Mapping[str, Any] | None, now: Work, outputs: Sequence[str], where: str) -> None:
    """Raises :class:`OtherBatchError` unless the folder is empty or was made by the same work."""
    if before is None:
        if outputs:
            raise OtherBatchError(
                f"--output {where} holds {outputs[0]!r}, which no batch job made", hint="choose another --output"
            )
        return
    wanted = now.to_json()
    differ = [
        f"{key} was {before.get(key)!r} and is {wanted[key]!r}" for key in wanted if before.get(key) != wanted[key]
    ]
    if differ:
        raise OtherBatchError(
            f"--output {where} was made by another job: {'; '.join(differ)}",
            hint="choose another --output, or --fresh to replace what batch jobs wrote there",
        )


def settings_hash(document: object) -> str:
    """Of what can change an answer, whatever the order of its keys."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def passes(costs: Sequence[int], max_batch_size: int, max_batch_cost: int | None) -> Generator[slice]:
    """Consecutive slices that keep both bounds. No cost is over ``max_batch_cost``."""
    start, cost = 0, 0
    for index, found in enumerate(costs):
        full = index - start == max_batch_size or (max_batch_cost is not None and cost + found > max_batch_cost)
        if full and index > start:
            yield slice(start, index)
            start, cost = index, 0
        cost += found
    if start < len(costs):
        yield slice(start, len(costs))
