"""The warm-up gate: has every replica of the chosen models loaded and warm, and says which is not and why."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.serving.warmup_client import UnreachableError, as_object, excerpt, send, serve_details

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
REQUEST_TIMEOUT_S = 15.0
_GONE = ("STOPPING", "PENDING_MIGRATION")
_INGRESS = "Ingress"
_EVERY_INTERFACE = ("", "0.0.0.0", "::")  # noqa: S104


class UnknownNameError(ModelServingError):
    """No such application or model."""

    kind = "bad_input"


@dataclass(frozen=True, kw_only=True)
class Replica:
    """What the controller and the replica itself say. ``state`` is the model's where the replica answered."""

    replica_id: str
    ready: bool
    state: str
    phase: str | None = None
    cause: str | None = None
    permanent: bool = False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One model of one application. ``hopeless``: waiting longer can't help."""

    application: str
    model: str
    route: str | None
    ready: bool
    cause: str | None
    replicas: tuple[Replica, ...] = ()
    hopeless: bool = False
    example_inputs: Any = None

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        del document["hopeless"], document["example_inputs"]
        return document


def chosen(details: Mapping[str, Any], application: str | None, model: str | None) -> list[tuple[str, str]]:
    """Application and model of each deployment to warm up. Raises :class:`UnknownNameError`."""
    applications = details["applications"]
    if application is not None and application not in applications:
        raise UnknownNameError(f"--application: there is no {application!r}", hint=f"there is: {_names(applications)}")
    pairs = [
        (name, deployment)
        for name, app in applications.items()
        if application in (None, name)
        for deployment in app.get("deployments") or {}
        if deployment != _INGRESS
    ]
    if model is None:
        return pairs
    # An application that is still built, or failed, lists no deployments; its config names its models.
    planned = [(n, model) for n, app in applications.items() if application in (None, n) and model in _routes(app)]
    found = [pair for pair in pairs if pair[1] == model] or planned
    if not found:
        raise UnknownNameError(f"--model: there is no {model!r}", hint=f"there is: {_names(name for _, name in pairs)}")
    return found


def route_of(application: Mapping[str, Any], model: str) -> str | None:
    """The model's route: in the application's arguments, or the prefix of an application with one deployment."""
    deployments = [name for name in application.get("deployments") or {} if name != _INGRESS]
    return _routes(application).get(model) or (application.get("route_prefix") if len(deployments) == 1 else None)


def judge(details: Mapping[str, Any], application: str, model: str, answer: Mapping[str, Any] | str) -> Verdict:
    """Compare the controller's list with what the replicas said, or why they could not be asked. Pure."""
    app = details["applications"][application]
    deployment = (app.get("deployments") or {}).get(model) or {}
    said = {} if isinstance(answer, str) else {status.get("replica_id"): status for status in answer["replicas"]}
    replicas = tuple(
        _replica(listed, said.get(listed["replica_id"]))
        for listed in deployment.get("replicas") or []
        if listed["state"] not in _GONE
    )
    wanted = deployment.get("target_num_replicas")
    cause, hopeless = None, any(replica.permanent for replica in replicas)
    late = next((replica for replica in replicas if not replica.ready), None)
    if app["status"] in ("DEPLOY_FAILED", "DELETING"):
        cause, hopeless = f"the application is {app['status']}: {app.get('message') or 'no message'}", True
    elif not replicas and wanted == 0:
        cause, hopeless = "it has no replicas: it is scaled to zero, and the first request starts one", True
    elif late is not None and (late.cause or not isinstance(answer, str)):
        cause = f"replica {late.replica_id} is {late.state}" + (f", phase {late.phase}" if late.phase else "")
        cause += f": {late.cause}" if late.cause else ""
    elif isinstance(answer, str):
        cause = answer
    elif app["status"] != "RUNNING" or not replicas or len(replicas) < (wanted or 1):
        message = deployment.get("message") or app.get("message") or ""
        cause = f"{len(replicas)} of {wanted} replicas are there; the application is {app['status']}. {message}".strip()
    if cause and late and late.state == "STARTING" and deployment.get("message"):
        cause = f"{cause}: {deployment['message']}"
    return Verdict(
        application=application,
        model=model,
        route=route_of(app, model),
        ready=cause is None,
        cause=cause,
        replicas=replicas,
        hopeless=hopeless,
        example_inputs=None if isinstance(answer, str) else answer.get("example_inputs"),
    )


def _replica(listed: Mapping[str, Any], status: Mapping[str, Any] | None) -> Replica:
    if status is None or listed["state"] != "RUNNING":
        return Replica(replica_id=listed["replica_id"], ready=False, state=listed["state"])
    error = status.get("error") or {}
    return Replica(
        replica_id=listed["replica_id"],
        ready=bool(status["ready"]),
        state=status["state"],
        phase=status.get("phase"),
        cause=error.get("message") or (None if status["state"] in ("loading", "warming") else status["why_not_ready"]),
        permanent=bool(error.get("permanent")),
    )


@dataclass(frozen=True, kw_only=True)
class WarmupGate:
    """``body`` is sent at the end; None for what the model's class offers. ``url`` overrides the proxies' own."""

    address: str
    application: str | None = None
    model: str | None = None
    url: str | None = None
    body: bytes | None = None
    timeout_s: float = 600.0

    def run(self, say: Callable[[str], None]) -> list[Verdict]:
        """Ask until all is ready, nothing can get better, or the time is over. Bounded in time, with back-off.

        Raises :class:`UnknownNameError` and the errors of ``warmup_client``.
        """
        end, pause_s = time.monotonic() + self.timeout_s, FIRST_PAUSE_S
        while True:
            left_s = max(1.0, end - time.monotonic())
            last = time.monotonic() + pause_s >= end
            try:
                details = serve_details(self.address, timeout_s=min(left_s, REQUEST_TIMEOUT_S))
            except UnreachableError as error:  # a head that starts again comes back
                if last:
                    raise
                say(str(error))
            else:
                pairs = chosen(details, self.application, self.model)
                verdicts = [self._ask(details, *pair, left_s) for pair in pairs]
                if pairs and (last or all(verdict.ready or verdict.hopeless for verdict in verdicts)):
                    return verdicts
                if last:
                    raise UnreachableError("Serve lists no model", hint="deploy an application first, or name it")
                say("; ".join(f"{v.model}: {v.cause}" for v in verdicts if not v.ready) or "no model is listed yet")
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)

    def _ask(self, details: Mapping[str, Any], application: str, model: str, left_s: float) -> Verdict:
        route, base = route_of(details["applications"][application], model), self.url or _proxy_url(details)
        timeout_s = min(left_s, REQUEST_TIMEOUT_S)
        if route is None or base is None:
            missing = "its route is not known" if route is None else "no proxy is healthy"
            return judge(details, application, model, f"{missing}: the replicas could not be asked")
        where = f"{base}{route.rstrip('/')}"
        verdict = judge(details, application, model, _wake(f"{where}/warmup", timeout_s))
        if not verdict.ready:
            return verdict
        body = self.body
        if body is None and verdict.example_inputs is not None:
            body = json.dumps({"inputs": verdict.example_inputs}).encode()
        problem, final = _predict(where or "/", body, timeout_s) if body is not None else (None, False)
        if problem is None:
            return verdict
        return replace(verdict, ready=False, cause=problem, hopeless=final)


def _wake(url: str, timeout_s: float) -> Mapping[str, Any] | str:
    try:
        status, content = send("POST", url, b"", timeout_s=timeout_s)
    except UnreachableError as error:
        return str(error)
    document = as_object(content)
    if status == 200 and document and isinstance(document.get("replicas"), list):
        return document
    return f"POST {url} answered {status}: {excerpt(content)}"


def _predict(url: str, body: bytes, timeout_s: float) -> tuple[str | None, bool]:
    """What is wrong with the answer to a real request, or None; and whether it stays wrong."""
    try:
        status, content = send("POST", url, body, timeout_s=timeout_s)
    except UnreachableError as error:
        return str(error), False
    problem = None if status == 200 else f"a request to {url} was answered {status}: {excerpt(content)}"
    return problem, status not in (429, 503, 504)


def _proxy_url(details: Mapping[str, Any]) -> str | None:
    # Each proxy reaches every replica through the broadcast, wherever it is.
    options = details.get("http_options") or {}
    host, port = options.get("host"), options.get("port") or 8000
    ips = [proxy["node_ip"] for proxy in details["proxies"].values() if proxy["status"] == "HEALTHY"]
    if not ips:
        return None
    if host in (None, *_EVERY_INTERFACE):
        host = ips[0]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _routes(application: Mapping[str, Any]) -> dict[str, str]:
    config = application.get("deployed_app_config") or {}
    models = (config.get("args") or {}).get("models") or []
    return {
        model["name"]: model["route"] for model in models if isinstance(model, dict) and {"name", "route"} <= set(model)
    }


def _names(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
