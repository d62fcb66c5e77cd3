"""What the commands print: one JSON document or readable text on stdout, errors in one shape, progress on stderr."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ray_model_serving.cli.entry import EXIT_INTERRUPTED, EXIT_TERMINATED, Terminated, interrupted
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.problems import SettingsError
from ray_model_serving.contract.uris import BadUriError
from ray_model_serving.store import FetchProgress
from ray_model_serving.store.disk import typed
from ray_model_serving.store.errors import AwsConfigurationError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
DEBUG_VARIABLE = "RAY_MODEL_DEBUG"
_PLAIN_INTERVAL_S = 5.0


class UsageError(ModelServingError):
    """Options that do not go together, or a file that is not what an option wants."""

    kind = "bad_input"


class SomeFailedError(ModelServingError):
    """One or more models of a list failed; the others are there."""

    kind = "some_failed"


class InternalError(ModelServingError):
    """A fault of this program."""

    kind = "internal"


class NegativeVerdict(Exception):  # noqa: N818 - not an error: the answer is printed, and it is no
    """The command did what it was asked, and what it found is not well."""


def guarded(
    run: Callable[[], None], as_json: bool, *, permanent_is_bad_input: bool = False, if_interrupted: str | None = None
) -> None:
    """Run a command and turn its errors into text or JSON and an exit code; ``if_interrupted`` says what to do then."""
    try:
        run()
    except (KeyboardInterrupt, Terminated) as interrupt:
        report_error(interrupted(if_interrupted) if if_interrupted else interrupted(), as_json)
        code = EXIT_TERMINATED if isinstance(interrupt, Terminated) else EXIT_INTERRUPTED
        raise typer.Exit(code) from interrupt
    except NegativeVerdict as verdict:
        raise typer.Exit(EXIT_FAILED) from verdict
    except ModelServingError as error:
        # A list prints its document itself, with every model's outcome and this error in it.
        if not (as_json and isinstance(error, SomeFailedError)):
            report_error(error, as_json)
        bad_input = isinstance(error, BadUriError | SettingsError | UsageError | AwsConfigurationError)
        bad_input = bad_input or (permanent_is_bad_input and error.permanent)
        raise typer.Exit(EXIT_BAD_INPUT if bad_input else EXIT_FAILED) from error
    except typer.Exit:
        raise
    except OSError as error:
        report_error(typed(error, Path()), as_json)
        raise typer.Exit(EXIT_FAILED) from error
    except Exception as error:
        report_error(_internal(error), as_json)
        raise typer.Exit(EXIT_FAILED) from error


def _internal(error: Exception) -> InternalError:
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exc()
    return InternalError(
        f"{type(error).__name__}: {error}",
        hint=f"this is a fault of ray-model; {DEBUG_VARIABLE}=1 shows where",
    )


def report_error(error: ModelServingError, as_json: bool) -> None:
    """The JSON document on stdout, or one paragraph on stderr."""
    if as_json:
        print_json(error.to_json())
    else:
        typer.echo(f"ray-model: {error}", err=True)


def print_json(document: object) -> None:
    """The one document of ``--json``."""
    typer.echo(json.dumps(document, indent=2))


@contextmanager
def progress(label: str) -> Generator[Callable[[FetchProgress], None]]:
    """A listener for ``ensure``: a bar on a terminal, plain lines elsewhere; always on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _PlainProgress(label).tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda now: bar.update(
            task, description=f"{now.phase} {label}", completed=now.bytes_done, total=now.bytes_total or None
        )


class _PlainProgress:
    """A line for each phase, and one every few seconds within it."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._phase = ""
        self._printed_s = 0.0

    def tell(self, now: FetchProgress) -> None:
        if now.phase == self._phase and time.monotonic() - self._printed_s < _PLAIN_INTERVAL_S:
            return
        self._phase, self._printed_s = now.phase, time.monotonic()
        state = f": {amount(now.bytes_done)} of {amount(now.bytes_total)}" if now.bytes_total else ""
        print(f"{self._label}: {now.phase}{state}", file=sys.stderr, flush=True)  # noqa: T201 - the command's output


def amount(size_bytes: int) -> str:
    """Bytes for people."""
    for unit, bytes_per_unit in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size_bytes >= bytes_per_unit:
            return f"{size_bytes / bytes_per_unit:.1f} {unit}"
    return f"{size_bytes} B"
