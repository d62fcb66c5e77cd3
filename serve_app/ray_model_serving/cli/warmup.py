"""``ray-model warmup``: the gate after a roll-out."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from ray_model_serving.cli.output import NegativeVerdict, UsageError, guarded, print_json
from ray_model_serving.serving.warmup_client import NotServeError, TokenError, dashboard_address
from ray_model_serving.serving.warmup_gate import UnknownNameError, Verdict, WarmupGate

_QUIET_S = 2.0


def warmup(
    address: Annotated[
        str, typer.Option("--address", help="Dashboard of the Ray head; auto: RAY_DASHBOARD_ADDRESS or this machine.")
    ] = "auto",
    application: Annotated[str | None, typer.Option("--application", help="Only this application.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model.")] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Where the routes answer; without it the proxy that Serve names.")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option("--inputs", help="JSON list for the request at the end; default: the model's own.")
    ] = None,
    body: Annotated[Path | None, typer.Option("--body", help="File with that request's whole body.")] = None,
    timeout_s: Annotated[float, typer.Option("--timeout-s", min=1, max=86_400, help="Seconds to wait at most.")] = 600,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")
    ] = False,
) -> None:
    """Have every replica load, wait until all are warm, then send a real request through each route.

    Exit code 0: all are ready. 1: one is not, with its state and cause. 2: bad input.

    Example: ray-model warmup --address http://embed-head-svc:8265 --timeout-s 900
    """

    def run() -> None:
        gate = WarmupGate(
            address=_checked("--address", address),
            application=application,
            model=model,
            url=None if url is None else _checked("--url", url),
            body=_request(inputs, body),
            timeout_s=timeout_s,
        )
        started = time.monotonic()
        try:
            verdicts = gate.run(lambda text: _progress(text, started))
        except (UnknownNameError, NotServeError, TokenError) as error:
            bad = UsageError(error.message, hint=error.hint)
            bad.kind = error.kind
            raise bad from error
        _print(verdicts, gate, time.monotonic() - started, as_json)

    guarded(run, as_json, if_interrupted="the loads go on; run it again for the verdict")


def _checked(option: str, value: str) -> str:
    try:
        return dashboard_address(value)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", hint="such as http://embed-head-svc:8265") from error


def _request(inputs: str | None, body: Path | None) -> bytes | None:
    if inputs is not None and body is not None:
        raise UsageError("--inputs and --body exclude each other", hint="give one of them")
    if body is not None:
        try:
            return body.read_bytes()
        except OSError as error:
            raise UsageError(f"--body: {error}", hint="name a file with the body of one request") from error
    if inputs is None:
        return None
    try:
        values = json.loads(inputs)
    except ValueError as error:
        raise UsageError(f"--inputs: {inputs!r} is not JSON: {error}", hint="such as '[\"a text\"]'") from error
    if not isinstance(values, list) or not values:
        raise UsageError(f"--inputs: got {inputs}, must be a list with at least one input", hint="such as '[1, 2]'")
    return json.dumps({"inputs": values}).encode()


def _progress(text: str, started: float) -> None:
    waited_s = time.monotonic() - started
    if waited_s >= _QUIET_S:
        typer.echo(f"after {waited_s:.0f} s: {text}", err=True)


def _print(verdicts: list[Verdict], gate: WarmupGate, seconds: float, as_json: bool) -> None:
    ready = all(verdict.ready for verdict in verdicts)
    if as_json:
        document = {"ready": ready, "address": gate.address, "seconds": round(seconds, 3)}
        print_json({**document, "models": [verdict.to_json() for verdict in verdicts]})
    else:
        for verdict in verdicts:
            warm = sum(replica.ready for replica in verdict.replicas)
            state = "ready" if verdict.ready else f"not ready: {verdict.cause}"
            name = f"{verdict.application}/{verdict.model} at {verdict.route}"
            typer.echo(f"{name}: {warm} of {len(verdict.replicas)} replicas warm, {state}")
        typer.echo(f"asked {gate.address} and the route for {seconds:.1f} s: {'ready' if ready else 'not ready'}")
    if not ready:
        raise NegativeVerdict
