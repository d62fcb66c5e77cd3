"""``gpu-serving``: the plan and every document of a stack, without a cloud."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from eks_gpu_serving.cli.plan_view import plan_document, print_plan
from eks_gpu_serving.documents import render_all, write_documents
from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.planning.plan import RefusedError, plan
from eks_gpu_serving.refs import PLACEHOLDERS
from eks_gpu_serving.settings import StackSettings
from eks_gpu_serving.stack_files import load_stack
from ray_model_serving.contract.errors import ModelServingError

EXIT_REFUSED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
# Wide enough that no table is cut where the output goes to a file or a log.
_PLAIN_WIDTH = 150


class UsageError(ModelServingError):
    """Arguments that the command does not take."""

    kind = "bad_input"


app = typer.Typer(
    name="gpu-serving",
    no_args_is_help=True,
    add_completion=False,
    help="Plans and renders a GPU serving stack on EKS. Needs no cloud account and no Pulumi CLI.",
)

StackOption = Annotated[str, typer.Option("--stack", "-s", help="Environment, such as dev: reads Pulumi.<stack>.yaml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
ProjectOption = Annotated[
    Path, typer.Option("--project", help="A folder of the project; its Pulumi.yaml is found upwards from there.")
]


@app.callback()
def _commands() -> None:  # pyright: ignore[reportUnusedFunction]  (Typer: keeps the commands named)
    pass


@app.command("plan")
def plan_command(stack: StackOption, as_json: JsonOption = False, project: ProjectOption = Path()) -> None:
    """Show pools, pods, memory split, cache bytes, GPU bounds, times and USD per hour; or every reason against it.

    Exit code 0: the stack fits. 1: refused. 2: bad input.

    Example: gpu-serving plan --stack dev
    """

    def command() -> None:
        settings, capacity = _planned(stack, project)
        if as_json:
            typer.echo(json.dumps(plan_document(stack, settings, capacity), indent=2))
        else:
            print_plan(_console(), settings, capacity)

    _guarded(command, as_json)


@app.command()
def render(
    stack: StackOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the documents; made if it is missing.")],
    as_json: JsonOption = False,
    project: ProjectOption = Path(),
) -> None:
    """Write every document the stack would create: user data, IAM policies, manifests, Helm values; one file each.

    What only the cloud knows is shown as a placeholder such as <cluster-name>. Documents of an earlier render that the
    stack no longer has are deleted; files that were not rendered are left alone. Exit codes as for plan.

    Example: gpu-serving render --stack dev --out rendered/
    """

    def command() -> None:
        settings, capacity = _planned(stack, project)
        written = write_documents(render_all(settings, capacity, PLACEHOLDERS), out)
        if as_json:
            typer.echo(json.dumps({"documents": [str(path) for path in written]}, indent=2))
        else:
            for path in written:
                typer.echo(str(path))

    _guarded(command, as_json)


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
        _report(UsageError(message(), hint="gpu-serving --help"), as_json=True)
        sys.exit(EXIT_BAD_INPUT)
    sys.exit(code or 0)


def _planned(stack: str, project: Path) -> tuple[StackSettings, CapacityPlan]:
    settings = load_stack(stack, project.resolve())
    return settings, plan(settings)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def _guarded(command: Callable[[], None], as_json: bool) -> None:
    try:
        command()
    except KeyboardInterrupt as error:
        raise typer.Exit(EXIT_INTERRUPTED) from error
    except (ModelServingError, OSError) as error:
        _report(error, as_json)
        raise typer.Exit(EXIT_REFUSED if isinstance(error, RefusedError) else EXIT_BAD_INPUT) from error


def _report(error: ModelServingError | OSError, as_json: bool) -> None:
    known = error if isinstance(error, ModelServingError) else ModelServingError(str(error))
    if as_json:
        typer.echo(json.dumps(known.to_json(), indent=2))
    else:
        typer.echo(f"gpu-serving: {known}", err=True)
