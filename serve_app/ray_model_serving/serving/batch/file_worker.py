"""What one actor does: load the model once, then one input file after the other."""

import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Any

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.settings import ModelSettings, ServingSettings
from ray_model_serving.serving.batch.places import Place
from ray_model_serving.serving.batch.plan import STATE, InputFile, OnBadRow, Work, settings_hash
from ray_model_serving.serving.batch.records import read_blocks, writer
from ray_model_serving.serving.batch.rows import answer
from ray_model_serving.serving.halving import is_device_fault
from ray_model_serving.serving.worker import ModelWorker, create_model

# Rows that are read at once, in passes: enough that the last pass of a block, which may be short, costs little.
_PASSES_PER_BLOCK = 16
_SHOWN_PROBLEMS = 10


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that an actor needs; goes to its node as plain values."""

    settings: ServingSettings
    model: ModelSettings
    work: Work
    input_uri: str
    output_uri: str
    batch_size: int
    endpoint_url: str | None


class BadRowError(ModelServingError):
    """A row that the model can't answer, where such rows fail the file."""

    kind = "bad_row"


class FileWorker:
    """Ray Data makes one in each actor and calls it with batches of one file."""

    def __init__(self, job: Job) -> None:
        if job.endpoint_url:
            os.environ["AWS_ENDPOINT_URL"] = job.endpoint_url  # for the model's files as well; the process is the job's
        self._job = job
        self._input, self._output = Place(job.input_uri, None), Place(job.output_uri, None)
        self._served = create_model(job.model)
        self._worker = ModelWorker(job.settings, job.model, self._served)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        results = [json.dumps(self._one(InputFile(**json.loads(text)))) for text in batch["file"].tolist()]
        return {"result": results}

    def _one(self, file: InputFile) -> dict[str, Any]:
        """The file's record, or its error. Not raised, since Ray Data would end the whole job for it."""
        try:
            if self._worker.report is None:
                self._worker.load()
                self._worker.warm_up()
        except Exception as error:
            failure = error if isinstance(error, ModelServingError) else _untyped("the warm-up", error)
            return {"input": asdict(file), **failure.to_json(), "load_failed": True}
        try:
            return self._compute(file)
        except ModelServingError as error:
            return {"input": asdict(file), **error.to_json()}
        except Exception as error:
            if is_device_fault(error):
                raise  # nothing works in this process any more
            return {"input": asdict(file), **_untyped(file.name, error).to_json()}

    def _compute(self, file: InputFile) -> dict[str, Any]:
        job, started = self._job, time.monotonic()
        rows = bad = written = 0
        problems: list[str] = []
        with (
            self._input.open(file.name) as source,
            self._input.open(file.name) as schema,
            self._output.whole_file(file.name) as path,
            writer(path, file.name, schema, job.work.output_column) as write,
        ):
            for block in read_blocks(source, file.name, job.work.column, job.batch_size * _PASSES_PER_BLOCK):
                answers = answer(
                    block.values,
                    block.problems,
                    served=self._served,
                    worker=self._worker,
                    limits=job.model.limits,
                    batch_size=job.batch_size,
                )
                said = [f"row {rows + n}: {text}" for n, text in enumerate(answers.problems) if text is not None]
                if said and job.work.on_bad_row == OnBadRow.FAIL:
                    raise BadRowError(
                        f"{file.name}, {said[0]}", hint="correct it, or --on-bad-row skip or keep; rows count from 0"
                    )
                keep_all = job.work.on_bad_row == OnBadRow.KEEP
                kept = [keep_all or text is None for text in answers.problems]
                write(block, answers.outputs, kept)
                rows, bad, written = rows + len(kept), bad + len(said), written + sum(kept)
                problems += said[: _SHOWN_PROBLEMS - len(problems)]
        record = {
            "input": asdict(file),
            "output": file.name,
            "rows": rows,
            "rows_written": written,
            "bad_rows": bad,
            "problems": problems,
            "seconds": round(time.monotonic() - started, 3),
            "snapshot_id": self._worker.snapshot_id,
            "model_class": job.work.model_class,
        }
        # After the file: a run that is killed between the two computes it again and replaces it.
        self._output.write_json(record_name(file.name), record)
        return {**record, "load": self._worker.report, "pid": os.getpid()}


def _untyped(what: str, error: Exception) -> ModelServingError:
    return ModelServingError(f"{what}: {type(error).__name__}: {error}")


def record_name(name: str) -> str:
    """Of the record of one input: a hash, since a name may be as long as a file's name can be."""
    return f"{STATE}files/{settings_hash(name)}.json"
