"""The clients, one function each: imports first, then a function that is timed and returns the ready module.

Runs in the project's environment for ours and in the peers' environments for the rest. The process prints ``ready``
after the imports, starts when a line comes in and prints JSON, prints the digest of its weights at the next line, and
keeps the module until another one comes in.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import checkpoints

if TYPE_CHECKING:
    import torch

BUCKET = "bench"
CONNECTIONS = 16
_OBSTORE_PART_BYTES = 16 * 1024**2
# One write of a whole part made this peer take twice as long here, which says nothing about its download.
_WRITE_BYTES = 512 * 1024


@dataclass(frozen=True, kw_only=True)
class Task:
    """Where the model is and where it may go: a directory of this case's own, or the node's for ours."""

    endpoint_url: str
    prefix: str
    directory: Path
    notes: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of the phases, where a client tells them."""


Run = Callable[[], "torch.nn.Module"]


def ours(task: Task, pin: str | None = None, network_gbps: float | None = None) -> Run:
    """ray_model_serving: every byte checked, synced, published by a rename, mapped."""
    from ray_model_serving.contract.settings import Device, Dtype
    from ray_model_serving.loading import load
    from ray_model_serving.store import ModelStore
    from ray_model_serving.store import s3_source as _s3_source  # boto3, which the store imports at first use

    del _s3_source

    def run() -> "torch.nn.Module":
        store = ModelStore(task.directory, endpoint_url=task.endpoint_url, network_gbps=network_gbps)
        snapshot = store.ensure(f"s3://{BUCKET}/{task.prefix}/", snapshot_id=pin)
        loaded = load(snapshot, checkpoints.build_from, dtype=Dtype.AUTO, device=Device.CPU)
        task.notes.update(snapshot.report.seconds, load=loaded.report.seconds["total"])
        return loaded.module

    return run


def ours_pinned(task: Task) -> Run:
    """As prod has it: the settings name the snapshot."""
    return ours(task, os.environ["BENCH_PIN"])


def ours_told(task: Task) -> Run:
    """As the plan has it on a node of 25 Gbit/s: 37 connections."""
    return ours(task, network_gbps=25)


def boto3_download_file(task: Task) -> Run:
    """boto3 with its defaults, file by file."""
    import boto3
    from safetensors.torch import load_file as _load_file

    del _load_file

    def run() -> "torch.nn.Module":
        client: Any = boto3.client("s3", endpoint_url=task.endpoint_url)
        for item in client.list_objects_v2(Bucket=BUCKET, Prefix=f"{task.prefix}/")["Contents"]:
            client.download_file(BUCKET, item["Key"], str(task.directory / Path(item["Key"]).name))
        return checkpoints.load_directory(task.directory)

    return run


def obstore_parts(task: Task) -> Run:
    """obstore's get_range over parts of all files, written at their place; nothing is checked."""
    from obstore.store import S3Store  # pyright: ignore[reportMissingImports] - only in the peers' environment

    def run() -> "torch.nn.Module":
        store: Any = S3Store(
            BUCKET, endpoint=task.endpoint_url, region="us-east-1", access_key_id="benchmark",
            secret_access_key="benchmark", virtual_hosted_style_request=False, client_options={"allow_http": True},
        )  # fmt: skip
        parts: list[tuple[str, int, int, int]] = []
        for item in store.list(f"{task.prefix}/").collect():
            descriptor = os.open(task.directory / Path(item["path"]).name, os.O_RDWR | os.O_CREAT, 0o644)
            os.posix_fallocate(descriptor, 0, item["size"])
            parts += [
                (item["path"], descriptor, start, min(_OBSTORE_PART_BYTES, item["size"] - start))
                for start in range(0, item["size"], _OBSTORE_PART_BYTES)
            ]

        def fetch(part: tuple[str, int, int, int]) -> None:
            path, descriptor, start, length = part
            content = memoryview(store.get_range(path, start=start, length=length))
            for offset in range(0, length, _WRITE_BYTES):
                os.pwrite(descriptor, content[offset : offset + _WRITE_BYTES], start + offset)

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(fetch, parts))
        for descriptor in {part[1] for part in parts}:
            os.close(descriptor)
        return checkpoints.load_directory(task.directory)

    return run


def s5cmd(task: Task) -> Run:
    """s5cmd's cp with 16 parts at once."""
    command = [
        str(Path(sys.executable).with_name("s5cmd")), "--endpoint-url", task.endpoint_url, "--log", "error", "cp",
        "--concurrency", str(CONNECTIONS), "--part-size", "16", f"s3://{BUCKET}/{task.prefix}/*", f"{task.directory}/",
    ]  # fmt: skip
    return _command(task, command)


def rclone(task: Task) -> Run:
    """rclone's copy with 16 streams; the chunk is the file's size over the streams where its default is more."""
    size = sum(path.stat().st_size for path in _source(task).glob("*.safetensors"))
    files = max(1, len(list(_source(task).glob("*.safetensors"))))
    chunk_mib = min(64, max(4, -(-size // files // CONNECTIONS // 1024**2)))
    command = [
        str(Path(sys.executable).with_name("rclone")), "copy", f":s3:{BUCKET}/{task.prefix}", str(task.directory),
        "--multi-thread-streams", str(CONNECTIONS), "--multi-thread-cutoff", "8M",
        "--multi-thread-chunk-size", f"{chunk_mib}M", "--ignore-checksum", "--s3-no-check-bucket",
    ]  # fmt: skip
    return _command(task, command)


def _source(task: Task) -> Path:
    return Path(os.environ["BENCH_OBJECTS"]) / BUCKET / task.prefix


def _command(task: Task, command: list[str]) -> Run:
    def run() -> "torch.nn.Module":
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr.strip())
        return checkpoints.load_directory(task.directory)

    return run


def s3fs(task: Task) -> Run:
    """s3fs with 16 ranges at once for each file."""
    import s3fs as library  # pyright: ignore[reportMissingImports] - only in the peers' environment

    def run() -> "torch.nn.Module":
        store: Any = library.S3FileSystem(
            key="benchmark", secret="benchmark", endpoint_url=task.endpoint_url, max_concurrency=CONNECTIONS
        )
        for path in store.ls(f"{BUCKET}/{task.prefix}"):
            store.get_file(path, str(task.directory / Path(path).name))
        return checkpoints.load_directory(task.directory)

    return run


def s3torchconnector(task: Task) -> Run:
    """s3torchconnector's reader into memory, as its documentation shows; no file."""
    from s3torchconnector._s3client import S3Client, S3ClientConfig  # pyright: ignore[reportMissingImports]
    from safetensors.torch import load

    def run() -> "torch.nn.Module":
        config: Any = S3ClientConfig(force_path_style=True)
        client: Any = S3Client(region="us-east-1", endpoint=task.endpoint_url, s3client_config=config)
        tensors: dict[str, torch.Tensor] = {}
        for page in client.list_objects(BUCKET, f"{task.prefix}/"):
            for item in page.object_info:
                if item.key.endswith(".safetensors"):
                    tensors |= load(client.get_object(BUCKET, item.key).read())
        return checkpoints.assign(len(tensors), tensors)

    return run


def runai(task: Task) -> Run:
    """Run:ai's streamer with 16 requests at once, tensors into memory; no file."""
    from runai_model_streamer import (  # pyright: ignore[reportMissingImports] - only in the peers' environment
        SafetensorsStreamer,
    )

    names = sorted(path.name for path in _source(task).glob("*.safetensors"))

    def run() -> "torch.nn.Module":
        tensors: dict[str, torch.Tensor] = {}
        with SafetensorsStreamer() as streamer:
            streamer.stream_files([f"s3://{BUCKET}/{task.prefix}/{name}" for name in names])
            for name, tensor in streamer.get_tensors():
                tensors[name] = tensor.clone()  # the streamer uses its buffer again
        return checkpoints.assign(len(tensors), tensors)

    return run


def ray_llm(task: Task) -> Run:
    """ray.llm's model downloader, with its lock; all replicas of a node share its directory."""
    os.environ["HF_HUB_CACHE"] = str(task.directory)
    from ray.llm._internal.common.utils.cloud_utils import CloudMirrorConfig
    from ray.llm._internal.common.utils.download_utils import CloudModelDownloader

    def run() -> "torch.nn.Module":
        mirror = CloudMirrorConfig(bucket_uri=f"s3://{BUCKET}/{task.prefix}")
        path = CloudModelDownloader("bench/model", mirror).get_model(tokenizer_only=False)
        return checkpoints.load_directory(Path(path))

    return run


CASES: dict[str, Callable[[Task], Run]] = {
    "ours": ours,
    "ours pinned": ours_pinned,
    "ours told": ours_told,
    "rclone": rclone,
    "obstore": obstore_parts,
    "s5cmd": s5cmd,
    "boto3": boto3_download_file,
    "s3torchconnector": s3torchconnector,
    "runai": runai,
    "s3fs": s3fs,
    "ray.llm": ray_llm,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("endpoint_url")
    parser.add_argument("prefix")
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    import torch

    task = Task(endpoint_url=arguments.endpoint_url, prefix=arguments.prefix, directory=arguments.directory)
    run = CASES[arguments.case](task)
    torch.nn.Linear(2, 2)(torch.ones(2))  # whatever torch sets up once is not the client's
    print("ready", flush=True)
    sys.stdin.readline()
    task.directory.mkdir(parents=True, exist_ok=True)
    before = os.times()
    started = time.monotonic()
    module = run()
    done = time.monotonic()
    after = os.times()
    result = {
        "seconds": done - started,
        "done": done,
        "cpu_s": sum(after[:4]) - sum(before[:4]),
        "notes": task.notes,
    }
    print(json.dumps(result), flush=True)
    # When all are ready and not before: it takes the CPUs of those who still load. It reads every weight, so that
    # memory is counted with all pages in.
    sys.stdin.readline()
    print(json.dumps({"digest": checkpoints.digest(module)}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
