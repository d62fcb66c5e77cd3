"""Ray Serve on this machine, with the application that the stack would deploy."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Generator
from pathlib import Path

import ray
from ray import serve

from demo.machine import end_in_order
from ray_model_serving.app import build
from ray_model_serving.contract.settings import CacheMedium, Device, LoadMode, ServingSettings

APPLICATION = "demo"
_MIB = 1024**2


def on_this_machine(settings: ServingSettings, cache_root: Path, load_mode: LoadMode) -> ServingSettings:
    """The stack's own settings with what a machine without GPU and NVMe changes: device, GPUs, cache directory."""
    models = tuple(
        dataclasses.replace(model, device=Device.CPU, num_gpus=0.0, gpu_bytes=0, load_mode=load_mode)
        for model in settings.models
    )
    return dataclasses.replace(settings, models=models, cache_root=str(cache_root), cache_medium=CacheMedium.DIRECTORY)


@contextlib.contextmanager
def ray_on_loopback(folder: Path, port: int, replicas: int) -> Generator[None]:
    """One Ray node of this process's own; its HTTP proxy listens on loopback only."""
    ray.init(
        address="local",
        num_cpus=replicas + 2,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=256 * _MIB,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=str(folder / "ray"),
        _node_ip_address="127.0.0.1",
    )
    end_in_order()  # Ray has put handlers of its own in place of these
    # Serve tells the driver of every step; the demo has its own words for them.
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield
    finally:
        # The cluster is this process's own: ending it ends Serve, its replicas and its proxy.
        ray.shutdown()


def deploy(settings: ServingSettings) -> float:
    """Deploy with new replicas and wait until Serve reports them as running. Returns the seconds that it took."""
    # An application that only changes could keep processes that have loaded already.
    serve.delete(APPLICATION)
    started = time.monotonic()
    serve.run(build(settings.to_mapping()), name=APPLICATION, route_prefix="/")
    return time.monotonic() - started
