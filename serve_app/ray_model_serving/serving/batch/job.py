"""Runs a batch job on Ray Data: one pipeline over the input files, whose actors keep the model from file to file."""

import dataclasses
import importlib.util
import json
import logging
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.memory import actor_memory_bytes
from ray_model_serving.contract.problems import Problems
from ray_model_serving.contract.settings import ModelSettings, ServingSettings
from ray_model_serving.serving.batch.file_worker import FileWorker, Job, record_name
from ray_model_serving.serving.batch.places import Place
from ray_model_serving.serving.batch.plan import STATE, InputFile, OnBadRow, Plan, Work, check_same, plan, settings_hash
from ray_model_serving.serving.batch.records import columns_of
from ray_model_serving.serving.worker import create_model
from ray_model_serving.store import ModelStore

_JOB = f"{STATE}job.json"


class BatchMissingError(ModelServingError):
    """The packages of the extra ``[batch]`` are not installed."""

    kind = "batch_missing"


class BatchFailedError(ModelServingError):
    """The job ended before its end: an actor died, or Ray could not go on."""

    kind = "batch_failed"
    permanent = False


@dataclass(frozen=True, kw_only=True)
class Order:
    """What ``ray-model batch`` was asked for."""

    settings: ServingSettings
    model: str | None
    input_uri: str
    output_uri: str
    column: str
    output_column: str
    on_bad_row: OnBadRow
    concurrency: int
    batch_size: int | None
    fresh: bool
    endpoint_url: str | None
    address: str


def check_installed() -> None:
    """Raises :class:`BatchMissingError`."""
    missing = [name for name in ("ray", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise BatchMissingError(
            f"not installed: {', '.join(missing)}", hint="pip install 'ray-model-serving[serve,batch]'"
        )


def prepare(order: Order) -> tuple[Job, Plan]:
    """Check everything before anything is started. Raises :class:`SettingsError` with all problems,
    :class:`OtherBatchError`, and the errors of the store."""
    problems = Problems("batch")
    model = _chosen(order, problems)
    source, target = Place(order.input_uri, order.endpoint_url), Place(order.output_uri, order.endpoint_url)
    inputs = source.inputs()
    if not inputs:
        problems.add("--input", f"{order.input_uri} holds no .parquet, .jsonl or .ndjson file")
    else:
        with source.open(inputs[0].name) as file:
            columns = columns_of(file, inputs[0].name)
        if order.column not in columns:
            problems.add("--column", f"got {order.column!r}, {inputs[0].name} has: {', '.join(columns)}")
        if order.output_column in columns:
            problems.add("--output-column", f"got {order.output_column!r}, which {inputs[0].name} has already")
    if target.only is not None:
        problems.add("--output", f"got {order.output_uri}, must be a folder: it gets a file for each input file")
    inside = target.prefix.startswith(source.prefix) if source.only is None else target.prefix == source.prefix
    if target.bucket == source.bucket and inside:
        problems.add(
            "--output", f"{order.output_uri} lies in the input {order.input_uri}: its files would be input too"
        )
    problems.raise_if_any()
    assert model is not None
    create_model(model)  # a class that can't be made is told before a cluster is asked for
    job = _job(order, model)
    return job, _plan(order, job, target, inputs)


def _chosen(order: Order, problems: Problems) -> ModelSettings | None:
    models = {model.name: model for model in order.settings.models}
    if order.model is None and len(models) > 1:
        problems.add("--model", f"the settings have several, name one of: {', '.join(models)}")
        return None
    model = models.get(order.model or next(iter(models)))
    if model is None:
        problems.add("--model", f"got {order.model!r}, the settings have: {', '.join(models)}")
    elif order.batch_size and order.batch_size > model.limits.max_batch_size:
        problems.add(
            "--batch-size",
            f"got {order.batch_size}, must be at most limits.max_batch_size {model.limits.max_batch_size}",
        )
    return model


def _job(order: Order, model: ModelSettings) -> Job:
    store = ModelStore(
        Path(order.settings.cache_root),
        endpoint_url=order.endpoint_url,
        expected_role_arn=order.settings.expected_role_arn,
    )
    found = model.snapshot_id or store.resolve(model.uri, include=model.include, exclude=model.exclude).snapshot_id
    # Pinned for all actors: an upload in the middle of the job would otherwise mix two models in one folder.
    model = dataclasses.replace(model, snapshot_id=found)
    work = Work(
        model_class=model.model_class,
        snapshot_id=found,
        settings_hash=settings_hash({"dtype": model.dtype.value, "device": model.device.value}),
        column=order.column,
        output_column=order.output_column,
        on_bad_row=order.on_bad_row.value,
    )
    return Job(
        settings=order.settings,
        model=model,
        work=work,
        input_uri=order.input_uri,
        output_uri=order.output_uri,
        batch_size=order.batch_size or model.limits.max_batch_size,
        endpoint_url=order.endpoint_url,
    )


def _plan(order: Order, job: Job, target: Place, inputs: list[InputFile]) -> Plan:
    target.sweep()
    before = target.read_json(_JOB)
    records = target.records() if before is not None else {}
    outputs = target.names()
    if order.fresh and before is not None:
        # A run that was killed may have left an output without its record.
        written = {record["output"] for record in records.values()} | {file.name for file in inputs}
        for name in written.intersection(outputs):
            target.remove(name)
        for name in records:
            target.remove(record_name(name))
        records = {}
    else:
        check_same(before, job.work, outputs, order.output_uri)
    target.write_json(_JOB, job.work.to_json())
    return plan(inputs, records, outputs)


def compute(job: Job, files: tuple[InputFile, ...], order: Order, tell: Callable[[dict[str, Any]], None]) -> None:
    """Compute the files; ``tell`` gets the record or the error of each as it ends. Raises :class:`BatchFailedError`."""
    if not files:
        return
    import ray
    import ray.data
    import ray.exceptions

    with _connected(order.address):
        context = ray.data.DataContext.get_current().copy()
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        items = [{"file": json.dumps(asdict(file))} for file in files]
        with ray.data.DataContext.current(context):
            results = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
                FileWorker,  # pyright: ignore[reportArgumentType]  (its stubs know functions of batches only)
                fn_constructor_args=(job,),
                batch_size=1,
                # One file at a time: a second one waits where any actor can take it.
                compute=ray.data.ActorPoolStrategy(
                    size=min(order.concurrency, len(items)), max_tasks_in_flight_per_actor=1
                ),
                num_cpus=job.model.num_cpus,
                num_gpus=job.model.num_gpus or None,
                memory=actor_memory_bytes(job.model),
            )
            try:
                for row in results.iter_rows():
                    result = json.loads(row["result"])
                    if result.get("load_failed"):
                        error = result["error"]
                        raise BatchFailedError(f"the model could not be loaded: {error['message']}", hint=error["hint"])
                    tell(result)
            except ray.exceptions.RayError as error:
                raise BatchFailedError(
                    f"the job could not go on: {str(error).strip().splitlines()[-1]}",
                    hint="run it again; what is done is kept",
                ) from error
            finally:
                Place(job.output_uri, job.endpoint_url).sweep()


@contextmanager
def _connected(address: str) -> Generator[None]:
    """The Ray that this process has, or a connection of the job's own that ends with it."""
    import ray

    if ray.is_initialized():
        yield
        return
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        given = None if address == "auto" else address
        ray.init(address=given, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=None)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BatchFailedError(
            f"--address {address}: {error}", hint="auto, local, or the address of a cluster"
        ) from error
    if main:
        signal.signal(signal.SIGTERM, before)  # Ray has put a handler of its own in place
    try:
        yield
    finally:
        ray.shutdown()
