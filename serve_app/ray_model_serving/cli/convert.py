"""``ray-model convert``: pickled checkpoints to safetensors, so that replicas can map them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ray_model_serving.cli.output import UsageError, amount, guarded, print_json, progress
from ray_model_serving.contract.paths import CACHE_MOUNT_PATH
from ray_model_serving.contract.settings import Dtype
from ray_model_serving.store import ModelStore

if TYPE_CHECKING:
    from ray_model_serving.loading.convert import ConvertReport

_GIB = 1024**3
_LEAST_MEMORY_GIB = 0.0625  # torch's own share, whatever the blocks are
_INCLUDE = ["*"]
# What transformers' Trainer leaves beside the weights: pickles of its own, with code in them.
_OF_TRAINING = ("training_args.bin", "optimizer.*", "scheduler.*", "rng_state*", "scaler.*")
_EXCLUDE = ["*.onnx", "*.h5", "*.msgpack", "*.ot", ".git*", *_OF_TRAINING]


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A directory, file:///directory/ or s3://bucket/prefix/")
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="A new or empty directory.")],
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Type of the weights; auto keeps their own.")] = Dtype.AUTO,
    max_shard_gib: Annotated[
        float, typer.Option("--max-shard-gib", min=0.001, help="Largest file; a larger tensor has one of its own.")
    ] = 4.0,
    memory_gib: Annotated[
        float,
        typer.Option("--memory-gib", min=_LEAST_MEMORY_GIB, help="Most anonymous memory that the conversion takes."),
    ] = 1.0,
    state_key: Annotated[
        str | None, typer.Option("--state-key", help="Where in a training checkpoint the weights are.")
    ] = None,
    cache_dir: Annotated[Path, typer.Option("--cache-dir", help="Root of the node's cache, for s3://.")] = Path(
        CACHE_MOUNT_PATH
    ),
    endpoint_url: Annotated[
        str | None, typer.Option("--endpoint-url", help="S3 endpoint; without it AWS_ENDPOINT_URL and the AWS profile.")
    ] = None,
    include: Annotated[list[str], typer.Option("--include", help="Pattern of files; may be repeated.")] = _INCLUDE,
    exclude: Annotated[
        list[str], typer.Option("--exclude", help="Pattern of files to leave out; may be repeated.")
    ] = _EXCLUDE,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")
    ] = False,
) -> None:
    """Write a checkpoint as sharded safetensors, block by block; pickles that hold more than weights are refused.

    Exit code 0: DST is there, whole. 1: it failed, and DST is as it was. 2: bad input.

    Example: ray-model convert s3://models/old/v1/ /mnt/converted --dtype bfloat16
    """
    uri = source if "://" in source else f"file://{Path(source).absolute()}"

    def run() -> None:
        # torch takes seconds to import, and a target that is not empty should not wait for a fetch.
        from ray_model_serving.loading.convert import TargetNotEmptyError, check_target
        from ray_model_serving.loading.convert import convert as convert_snapshot

        try:
            check_target(target)
        except TargetNotEmptyError as error:
            raise UsageError(error.message, hint=error.hint) from error
        store = ModelStore(cache_dir, endpoint_url=endpoint_url)
        with progress(source) as listener:
            snapshot = store.ensure(uri, include=include, exclude=exclude, on_progress=listener)
            with snapshot:
                report = convert_snapshot(
                    snapshot,
                    target,
                    dtype=dtype,
                    max_shard_bytes=int(max_shard_gib * _GIB),
                    memory_bytes=int(memory_gib * _GIB),
                    state_key=state_key,
                    on_progress=listener,
                )
        if as_json:
            print_json(report.to_json())
        else:
            _print(report)

    guarded(run, as_json)


def _print(report: "ConvertReport") -> None:
    tied = f", {len(report.tied)} more names are tied to them" if report.tied else ""
    typer.echo(f"{report.path}: {report.tensors} tensors in {len(report.files)} files{tied}")
    typer.echo(f"  bytes    {amount(report.source_bytes)} read, {amount(report.written_bytes)} written")
    typer.echo(f"  seconds  {', '.join(f'{phase} {seconds:.2f}' for phase, seconds in report.seconds.items())}")
    typer.echo(f"  memory   peak anonymous {amount(report.peak_anon_bytes)}")
