"""The same model on plain Serve, as its documentation shows it: a class, ``@serve.batch``, a load in ``__init__``."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from starlette.requests import Request

from benchmarks import checkpoints
from benchmarks.object_store import BUCKET
from benchmarks.serving_models import Forward


class Plain:
    """One replica: files from ``directory``, or downloaded to its own folder in there, then torch's common load."""

    def __init__(self, directory: str, endpoint_url: str | None, prefix: str | None) -> None:
        files = Path(directory)
        if prefix:
            files.mkdir(parents=True, exist_ok=True)
            files = Path(tempfile.mkdtemp(dir=files))
            _download(endpoint_url, prefix, files)
        self._load(files)

    def _load(self, directory: Path) -> None:
        from safetensors.torch import load_file

        self._forward = Forward(directory)
        self._forward.mark("begin")
        self._module = checkpoints.build_from(directory)
        self._module.load_state_dict(load_file(directory / "model.safetensors"))
        self._module.eval()
        self._forward.mark("end")

    async def forward(self, count: int) -> list[Any]:
        return await asyncio.to_thread(self._forward.predict, count)

    async def predict(self, value: Any) -> Any:
        del value
        return (await self.forward(1))[0]

    async def __call__(self, request: Request) -> dict[str, Any]:
        return await self.answer(await request.json())

    async def answer(self, document: dict[str, Any]) -> dict[str, Any]:
        return {"outputs": [await self.predict(value) for value in document["inputs"]]}


def plain(
    _route: str,
    *,
    directory: str,
    endpoint_url: str | None = None,
    prefix: str | None = None,
    batch: dict[str, Any] | None = None,
    num_cpus: float = 0.2,
    **options: Any,
) -> Application:
    """``options`` are Serve's own, and ``batch`` those of ``@serve.batch``; what is not said is Serve's default."""

    class Batched(Plain):
        @serve.batch(**(batch or {}))
        async def predict(self, values: list[Any]) -> list[Any]:  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator makes it take one
            return await self.forward(len(values))

    deployment = serve.deployment(name="model", ray_actor_options={"num_cpus": num_cpus}, **options)(Batched)
    return deployment.bind(directory, endpoint_url, prefix)


def unbatched(_route: str, *, directory: str, num_cpus: float = 0.2, **options: Any) -> Application:
    """As :func:`plain`, with each input predicted on its own."""
    deployment = serve.deployment(name="model", ray_actor_options={"num_cpus": num_cpus}, **options)(Plain)
    return deployment.bind(directory, None, None)


def _download(endpoint_url: str | None, prefix: str, directory: Path) -> None:
    import boto3

    client: Any = boto3.client("s3", endpoint_url=endpoint_url)
    for item in client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")["Contents"]:
        client.download_file(BUCKET, item["Key"], str(directory / Path(item["Key"]).name))
