"""``ray-model``: what a model needs, a model on this node, a trial load, and a batch job.

Exit codes: 0 well, 1 failed, 2 bad input, 130 interrupted, 143 terminated. torch and boto3 are imported in commands.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ray_model_serving.cli import cache, commands
from ray_model_serving.cli.batch import batch
from ray_model_serving.cli.convert import convert
from ray_model_serving.cli.output import EXIT_BAD_INPUT, UsageError, guarded, report_error
from ray_model_serving.cli.warmup import warmup
from ray_model_serving.contract.paths import CACHE_MOUNT_PATH
from ray_model_serving.contract.settings import DEFAULT_EXCLUDE, Device, Dtype

app = typer.Typer(
    name="ray-model",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Models on a node: what one needs, fetch it into the node's cache, load it on trial; and jobs on Ray.",
)

app.add_typer(cache.app)

UriArgument = Annotated[str, typer.Argument(metavar="URI", help="s3://bucket/prefix/ or file:///directory/")]
OptionalUriArgument = Annotated[str | None, typer.Argument(metavar="[URI]", help="As for inspect; or --list.")]
CacheOption = Annotated[Path, typer.Option("--cache-dir", help="Root of the node's cache.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint-url", help="S3 endpoint; without it AWS_ENDPOINT_URL and the AWS profile.")
]
IncludeOption = Annotated[list[str], typer.Option("--include", help="Pattern of files to fetch; may be repeated.")]
ExcludeOption = Annotated[list[str], typer.Option("--exclude", help="Pattern of files to leave out; may be repeated.")]
BudgetOption = Annotated[
    float | None,
    typer.Option("--cache-budget-gib", min=0, help="Most GiB that the cache may hold; what is not in use is evicted."),
]
RateOption = Annotated[
    float | None,
    typer.Option("--rate-cap-mib-s", min=1, help="Most MiB/s that all downloads into the cache take together."),
]
PinOption = Annotated[
    str | None, typer.Option("--snapshot-id", help="Refuse any other content than this id; inspect prints it.")
]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Type of the weights; auto keeps the file's own.")]
DeviceOption = Annotated[Device, typer.Option("--device", help="Where the weights go.")]

_INCLUDE = ["*"]
_EXCLUDE: list[str] = [*DEFAULT_EXCLUDE]


@app.callback()
def _commands() -> None:  # pyright: ignore[reportUnusedFunction]  (Typer: keeps the commands named)
    pass


@app.command()
def inspect(
    uri: UriArgument,
    as_json: JsonOption = False,
    endpoint_url: EndpointOption = None,
    include: IncludeOption = _INCLUDE,
    exclude: ExcludeOption = _EXCLUDE,
) -> None:
    """Show files, types, bytes, the snapshot id and the memory a load needs, from headers: no weights are downloaded.

    Exit code 0: it can be loaded. 2: it can't, or the URI is wrong. 1: the store did not answer.

    Example: ray-model inspect s3://models/minilm/v1/
    """
    selection = commands.Selection(endpoint_url=endpoint_url, include=tuple(include), exclude=tuple(exclude))
    guarded(lambda: commands.inspect(uri, selection, as_json), as_json, permanent_is_bad_input=True)


@app.command()
def fetch(
    uri: Annotated[
        str | None, typer.Argument(metavar="[URI]", help="s3://bucket/prefix/ or file:///directory/")
    ] = None,
    list_file: Annotated[
        Path | None, typer.Option("--list", help="JSON file with several models, instead of URI.")
    ] = None,
    cache_dir: CacheOption = Path(CACHE_MOUNT_PATH),
    as_json: JsonOption = False,
    endpoint_url: EndpointOption = None,
    include: IncludeOption = _INCLUDE,
    exclude: ExcludeOption = _EXCLUDE,
    snapshot_id: PinOption = None,
    cache_budget_gib: BudgetOption = None,
    rate_cap_mib_s: RateOption = None,
) -> None:
    """Bring a verified snapshot into the node's cache; with --list each model of the file, whatever happens to others.

    Exit code 0: it is there. 1: it failed. 2: bad input.

    Example: ray-model fetch s3://models/minilm/v1/ --cache-dir /mnt/model-cache
    """
    selection = commands.Selection(
        endpoint_url=endpoint_url,
        include=tuple(include),
        exclude=tuple(exclude),
        snapshot_id=snapshot_id,
        cache_budget_bytes=None if cache_budget_gib is None else int(cache_budget_gib * 1024**3),
        rate_cap_bytes_per_s=None if rate_cap_mib_s is None else int(rate_cap_mib_s * 1024**2),
    )
    guarded(lambda: commands.fetch(uri, list_file, cache_dir, selection, as_json), as_json)


@app.command()
def load(
    uri: UriArgument,
    cache_dir: CacheOption = Path(CACHE_MOUNT_PATH),
    as_json: JsonOption = False,
    endpoint_url: EndpointOption = None,
    include: IncludeOption = _INCLUDE,
    exclude: ExcludeOption = _EXCLUDE,
    snapshot_id: PinOption = None,
    cache_budget_gib: BudgetOption = None,
    rate_cap_mib_s: RateOption = None,
    model_class: Annotated[
        str | None, typer.Option("--model-class", help="Import path, module:Class; without it the tensors are mapped.")
    ] = None,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = Device.CPU,
) -> None:
    """Fetch, then load; report seconds of each phase and the peak of anonymous and file-backed memory.

    Exit code 0: loaded. 1: it failed. 2: bad input.

    Example: ray-model load s3://models/minilm/v1/ --model-class ray_model_serving.models.text_embedding:TextEmbedding
    """
    selection = commands.Selection(
        endpoint_url=endpoint_url,
        include=tuple(include),
        exclude=tuple(exclude),
        snapshot_id=snapshot_id,
        cache_budget_bytes=None if cache_budget_gib is None else int(cache_budget_gib * 1024**3),
        rate_cap_bytes_per_s=None if rate_cap_mib_s is None else int(rate_cap_mib_s * 1024**2),
    )
    guarded(lambda: commands.load(uri, cache_dir, selection, model_class, dtype, device, as_json), as_json)


app.command()(convert)
app.command()(warmup)
app.command()(batch)


def run(arguments: Sequence[str]) -> NoReturn:
    """Run the command and leave with its exit code; with ``--json`` its usage errors are JSON, too."""
    if "--json" not in arguments:
        app(list(arguments))
        sys.exit(0)  # unreachable in Typer's standalone mode; keeps the type honest
    try:
        code = app(list(arguments), standalone_mode=False)
    except Exception as error:
        # Click's errors, whose class Typer keeps to itself (it ships a copy of Click since 0.26).
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        report_error(UsageError(message(), hint="ray-model --help"), as_json=True)
        sys.exit(EXIT_BAD_INPUT)
    sys.exit(code or 0)
