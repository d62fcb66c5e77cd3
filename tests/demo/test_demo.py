"""The demo as a new user runs it: it says what it claims, and leaves nothing behind."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SERVE_PORT = 8000


@pytest.fixture
def folder() -> Generator[Path]:
    """A temporary folder with a short path (Ray puts sockets below it) that the demo takes for the machine's own."""
    path = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def start(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "demo"],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(folder)}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def left_behind(folder: Path) -> list[str]:
    """Files below the folder and processes that were started with it as theirs."""
    found = [str(path) for path in folder.rglob("*")]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("TMPDIR", "").startswith(str(folder)):
                found.append(" ".join(process.cmdline()))
    return found


@pytest.mark.timeout(300)
def test_the_demo_shows_and_checks_its_claims_also_where_its_port_is_busy(folder: Path) -> None:
    with socket.socket() as busy:
        # Connections of an earlier server may linger; they keep a port from being bound, and not from being free.
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else keeps it busy
            busy.bind(("127.0.0.1", SERVE_PORT))
            busy.listen()
        demo = start(folder)
        text, _ = demo.communicate(timeout=280)
    assert demo.returncode == 0, text
    for claim in (
        "Capacity plan of gpu-serving-dev",
        f"port {SERVE_PORT} is busy, using",
        "downloaded from the store",
        "mapped the node's copy",
        "3 sentences in, 384 numbers out",
        "largest difference",
        "1 load, ready",
        "load peak anon",
        "Done in",
    ):
        assert claim in text, text
    assert left_behind(folder) == []


@pytest.mark.timeout(120)
def test_ctrl_c_in_the_middle_leaves_no_process_and_no_file(folder: Path) -> None:
    demo = start(folder)
    assert demo.stdout is not None
    seen = ""
    for line in demo.stdout:
        seen += line
        if "deploying" in line:  # the object store, Ray and the proxy run, replicas are starting
            break
    os.killpg(demo.pid, signal.SIGINT)  # what a terminal does
    rest, _ = demo.communicate(timeout=100)
    assert demo.returncode == 130, seen + rest
    assert "interrupted" in rest
    assert left_behind(folder) == []
