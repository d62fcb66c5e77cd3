"""Files of records, streamed in blocks: Parquet by row groups, JSON Lines by lines."""

import io
import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray_model_serving.contract.errors import ModelServingError

# A row group is held in memory until it is written; small ones make files that are slow to read.
_GROUP_ROWS = 65_536
_GROUP_BYTES = 32 * 1024**2
# Blocks of a Parquet file that are held until one of their rows has an output, whose type the file then gets.
_MOST_HELD = 64


class RecordsError(ModelServingError):
    """A file of records that can't be read, or whose output can't be written."""

    kind = "bad_records"


class Block:
    """Some rows of a file: the values of the column, and how to write the rows with their outputs."""

    def __init__(self, rows: Any, values: Sequence[Any], problems: Sequence[str | None]) -> None:
        self.rows = rows
        self.values = values
        self.problems = problems
        """What is wrong with a row before the model saw it."""


Write = Callable[[Block, Sequence[Any], Sequence[bool]], None]


def columns_of(file: Any, name: str) -> list[str]:
    """Names of the columns; of the first line, for JSON Lines. Raises :class:`RecordsError`."""
    if name.endswith(".parquet"):
        return list(_parquet(file, name).schema_arrow.names)
    line = _text(file).readline()
    row, problem = _row(line)
    if line and problem:
        raise RecordsError(f"{name}, line 1: {problem}")
    return list(row or {})


def read_blocks(file: Any, name: str, column: str, block_rows: int) -> Generator[Block]:
    """Blocks of at most ``block_rows`` rows, in order."""
    if name.endswith(".parquet"):
        for batch in _parquet(file, name).iter_batches(batch_size=block_rows):
            values = batch.column(column).to_pylist()
            yield Block(batch, values, [None] * len(values))
        return
    rows: list[Any] = []
    for line in _text(file):
        if not line.strip():
            continue
        rows.append(line)
        if len(rows) == block_rows:
            yield _lines(rows, column)
            rows = []
    if rows:
        yield _lines(rows, column)


@contextmanager
def writer(path: Path, name: str, source: Any, output_column: str) -> Generator[Write]:
    """Writes blocks with their outputs: ``write(block, outputs, kept)``. The file is complete when the block ends."""
    if not name.endswith(".parquet"):
        with path.open("w", encoding="utf-8") as file:
            yield lambda block, outputs, kept: _write_lines(file, block, outputs, kept, output_column)
        return
    parquet = _ParquetOutput(path, name, _parquet(source, name).schema_arrow, output_column)
    try:
        yield parquet.write
        parquet.finish()
    finally:
        parquet.close()


class _ParquetOutput:
    """The type of the new column is that of the first outputs; later ones must fit it."""

    def __init__(self, path: Path, name: str, schema: Any, output_column: str) -> None:
        self._path, self._name, self._schema, self._column = path, name, schema, output_column
        self._type: Any = None
        self._writer: Any = None
        self._held: list[tuple[Any, list[Any]]] = []
        self._group: list[Any] = []

    def write(self, block: Block, outputs: Sequence[Any], kept: Sequence[bool]) -> None:
        import pyarrow as pa

        rows = block.rows.filter(pa.array(kept))
        values = [output for output, keep in zip(outputs, kept, strict=True) if keep]
        if self._type is None:
            self._type = self._infer(values)
        if self._type is None:
            self._held.append((rows, values))
            if len(self._held) > _MOST_HELD:
                raise RecordsError(
                    f"{self._name}: no row of the first {_MOST_HELD} blocks has an output, so its type is unknown",
                    hint="check --column, or leave bad rows out with --on-bad-row skip",
                )
            return
        self._release()
        self._put(rows, values)

    def finish(self) -> None:
        import pyarrow as pa

        if self._type is None:
            self._type = pa.null()
        self._release()
        self._write_group()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _infer(self, values: list[Any]) -> Any:
        import pyarrow as pa

        try:
            found = pa.array(values).type
        except (pa.ArrowException, OverflowError) as error:
            raise self._does_not_fit(error) from error
        return None if pa.types.is_null(found) else found

    def _release(self) -> None:
        held, self._held = self._held, []
        for rows, values in held:
            self._put(rows, values)

    def _put(self, rows: Any, values: list[Any]) -> None:
        import pyarrow as pa

        try:
            column = pa.array(values, type=self._type)
        except (pa.ArrowException, OverflowError) as error:
            raise self._does_not_fit(error) from error
        self._group.append(pa.RecordBatch.from_arrays([*rows.columns, column], schema=self._with_output()))
        rows_held, bytes_held = sum(part.num_rows for part in self._group), sum(part.nbytes for part in self._group)
        if rows_held >= _GROUP_ROWS or bytes_held >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        self._open()
        if self._group:
            self._writer.write_table(pa.Table.from_batches(self._group))
        self._group = []

    def _does_not_fit(self, error: Exception) -> RecordsError:
        return RecordsError(
            f"{self._name}: outputs do not fit into one Parquet column of type {self._type}: {error}",
            hint="have predict_batch return one type of value, or use JSON Lines",
        )

    def _open(self) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, self._with_output())

    def _with_output(self) -> Any:
        import pyarrow as pa

        return self._schema.append(pa.field(self._column, self._type))


def _parquet(file: Any, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise RecordsError(f"{name} is not a Parquet file: {error}") from error


def _text(file: Any) -> io.TextIOWrapper:
    # The file stays the caller's to close.
    return io.TextIOWrapper(io.BufferedReader(file), encoding="utf-8", errors="surrogateescape")


def _row(line: str) -> tuple[dict[str, Any] | None, str | None]:
    try:
        row = json.loads(line)
    except ValueError as error:
        return None, f"is not JSON: {error}"
    return (row, None) if isinstance(row, dict) else (None, f"is a {type(row).__name__}, must be an object")


def _lines(lines: list[Any], column: str) -> Block:
    rows, values, problems = [], [], []
    for line in lines:
        row, problem = _row(line)
        if row is not None and column not in row:
            problem = f"has no {column!r}"
        rows.append(row)
        values.append(row.get(column) if row is not None else None)
        problems.append(problem)
    return Block(rows, values, problems)


def _write_lines(file: Any, block: Block, outputs: Sequence[Any], kept: Sequence[bool], output_column: str) -> None:
    for row, output, keep in zip(block.rows, outputs, kept, strict=True):
        if keep:
            # A line that is no object can't be kept as it is and hold an output; its null says that it was there.
            file.write(json.dumps({**(row or {}), output_column: output}) + "\n")
