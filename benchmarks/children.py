"""Processes of the benchmarks: each in a group of its own, ready before the clock starts, gone at the end."""

import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 180.0


class CaseFailed(Exception):  # noqa: N818 - a result of a benchmark, told in its table
    """A client did not do what was asked; the text says what it did."""


class Child:
    """``python -m module`` with lines in and out. Leaving the ``with`` block kills it and all that it started."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._pending = b""
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            cwd=ROOT, env={**os.environ, **(env or {})}, start_new_session=True, bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_ready(self) -> None:
        """Until it prints ``ready``. Raises :class:`CaseFailed` where it ends or takes too long before that."""
        self._line(lambda line: line == b"ready")

    def go(self, line: str = "") -> None:
        """Let it take its next step, or tell it which."""
        assert self._process.stdin
        self._process.stdin.write(line.encode() + b"\n")

    def result(self) -> dict[str, Any]:
        """The next line that is a JSON object. Raises :class:`CaseFailed` where none comes."""
        return cast("dict[str, Any]", json.loads(self._line(lambda line: line.startswith(b"{"))))

    def wait(self, limit_s: float) -> None:
        """Until it has ended by itself, or ``limit_s`` are over."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)

    def stop(self) -> None:
        """Let it and everything it started do nothing more, until :meth:`kill`."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """kill -9 for it and everything it started; no error where all of it is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _line(self, wanted: Callable[[bytes], bool]) -> bytes:
        assert self._process.stdout
        deadline = time.monotonic() + LIMIT_S
        while True:
            line, found, rest = self._pending.partition(b"\n")
            if found:
                self._pending = rest
                if wanted(line.strip()):
                    return line
                continue
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise CaseFailed(f"not done after {LIMIT_S:g} s")
            block = self._process.stdout.read(65536)
            if not block:
                raise CaseFailed(self._last_words() or f"ended with status {self._process.wait()}")
            self._pending += block

    def _last_words(self) -> str:
        self._errors.seek(0)
        return last_words(self._errors.read().decode(errors="replace"))

    def __enter__(self) -> "Child":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe:
                pipe.close()


def run_child(
    module: str, arguments: Sequence[str], *, python: str = sys.executable, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a child to its first JSON line. Raises :class:`CaseFailed` with its last words."""
    with Child(module, arguments, python=python, env=env) as child:
        return child.result()


def last_words(text: str) -> str:
    """The last line of a process's complaints, short enough for a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def drop_page_cache() -> bool:
    """Write back and drop all clean pages; False where this user may not. Files in tmpfs stay in memory."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
    except OSError:
        return False
    return True


def touch_memory(size_bytes: int) -> None:
    """Use and free that much memory.

    A virtual machine may give free memory back to its host after two seconds and pays for each page that it takes
    again, more than for the copy into it. Without this, clients that start quickly after a clean-up look faster.
    """
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_POPULATE):
        pass


_MAP_POPULATE = (
    0x8000  # mmap.MAP_POPULATE of Python 3.10 and newer on Linux, which type checkers do not know everywhere
)


def pss_bytes(pid: int) -> int:
    """Proportional resident memory of a process: shared pages are divided among those who map them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise CaseFailed(f"the kernel gives no Pss for process {pid}")
