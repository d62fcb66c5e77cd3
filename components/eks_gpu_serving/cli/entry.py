"""Entry point of ``gpu-serving``. Imports the command inside, so that Ctrl-C ends it quietly from the first moment."""

import sys
from typing import NoReturn

_EXIT_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command on the arguments of the process."""
    try:
        from eks_gpu_serving.cli.app import run

        run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
