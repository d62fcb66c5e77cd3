"""What the demo takes from the machine, and how it gives all of it back: a folder, ports, environment, processes."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import psutil

# Unix socket paths end at 107 characters, and Ray puts long names below its folder: the folder's own path is short.
_FOLDER_PREFIX = "egs-"
_END_S = 10.0


@contextlib.contextmanager
def clean_machine() -> Generator[Path]:
    """A private folder for everything the demo writes; at the end no process, port or file of it is left."""
    end_in_order()
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
    try:
        _isolate(folder)
        yield folder
    finally:
        end_children()
        shutil.rmtree(folder, ignore_errors=True)


def end_children() -> None:
    """End the processes that this one started and that are still there; no others."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    _, alive = psutil.wait_procs(children, timeout=_END_S)
    for child in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(alive, timeout=_END_S)


def _isolate(folder: Path) -> None:
    """Nothing of the user's own set-up takes part: no AWS profile, no Ray cluster, no model hub."""
    home = folder / "home"
    home.mkdir()
    # Libraries make temporary folders that an interrupt would leave behind; here they go with everything else.
    tempfile.tempdir = str(folder)
    for name in [name for name in os.environ if name.startswith(("AWS_", "RAY_"))]:
        del os.environ[name]
    os.environ.update(
        {
            "HOME": str(home),
            "TMPDIR": str(folder),
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "HF_HUB_OFFLINE": "1",
            "TQDM_DISABLE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
    )


def end_in_order() -> None:
    """The first Ctrl-C (or SIGTERM) begins the clean-up; a second one would leave what the first is to remove."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stderr.write("\ndemo: interrupted, removing processes and files ...\n")
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
