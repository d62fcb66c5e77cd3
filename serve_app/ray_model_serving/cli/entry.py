"""Entry point of ``ray-model``. Imports the command inside, so that it ends quietly from the first moment.

Signals have their answer before anything slow is imported: as an init container this is process 1, for which the kernel
has no default action on SIGTERM.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from ray_model_serving.contract.errors import ModelServingError

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM: passes every ``except Exception``, and runs every ``finally``."""


class InterruptedCommandError(ModelServingError):
    """Ctrl-C or SIGTERM; nothing partial is left."""

    kind = "interrupted"
    permanent = False


def interrupted(hint: str = "run it again; nothing partial is in the cache") -> InterruptedCommandError:
    """The error of a command that was ended from outside."""
    return InterruptedCommandError("interrupted", hint=hint)


def main() -> NoReturn:
    """Run the command on the arguments of the process."""
    # While modules are imported there is nothing to undo, and an exception there may be taken for a failed import.
    signal.signal(signal.SIGINT, _leave_at_once)
    signal.signal(signal.SIGTERM, _leave_at_once)
    from ray_model_serving.cli.app import run

    try:
        signal.signal(signal.SIGTERM, _terminate)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run(sys.argv[1:])
    except (KeyboardInterrupt, Terminated) as signalled:
        # Before the command began, or after its document was printed: there is one at most.
        sys.exit(EXIT_TERMINATED if isinstance(signalled, Terminated) else EXIT_INTERRUPTED)


def _leave_at_once(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    if "--json" in sys.argv:
        # Not through sys.stdout, whose buffer may be busy in the very line that was interrupted.
        import json

        os.write(1, f"{json.dumps(interrupted().to_json(), indent=2)}\n".encode())
    os._exit(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise Terminated
