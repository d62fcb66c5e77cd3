"""One run of the demo on this machine, from the first line to the last process."""

import sys
import time

from rich.console import Console

from demo.machine import clean_machine
from demo.story import DemoError, tell

# Wide enough that no table is cut where the output goes to a file or a log.
_PLAIN_WIDTH = 150


def run() -> int:
    """Tell the story and clean up. Returns the exit code."""
    console = Console() if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH)
    started = time.monotonic()
    try:
        with clean_machine() as folder:
            tell(console, folder)
    except DemoError as error:
        console.print(f"demo: {error}", style="bold red")
        return 1
    except KeyboardInterrupt:
        console.print("demo: interrupted. Its processes, ports and files are removed.")
        return 130
    console.print(
        f"\n[bold]Done[/bold] in {time.monotonic() - started:.0f} s. Its processes, ports and files are removed."
    )
    return 0
