"""The mock run: own thread, own event loop, own Pulumi context, so that nothing is left for the next test."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulumi
from google.protobuf import empty_pb2
from pulumi.output import Unknown
from pulumi.runtime import mocks, rpc, settings, stack
from pulumi.runtime.proto import resource_pb2

from harness.cloud import PROJECT, STACK, Cloud
from harness.graph import UNKNOWN, Graph, Invoke, Record

PREVIEW_MODES = (False, True)

_STACK_TYPE = "pulumi:pulumi:Stack"
_TIME_LIMIT_S = 60.0


def run(
    build: Callable[[], object],
    *,
    preview: bool = False,
    cloud: Cloud | None = None,
    config: Mapping[str, str] | None = None,
) -> Graph:
    """Run ``build`` as a Pulumi program against mocks and return what it registered.

    ``preview`` leaves what the cloud would answer unknown, as ``pulumi preview`` does. ``cloud`` answers for the cloud;
    give one to change an answer. ``config`` is the stack's configuration, keys with their namespace
    (``eks-gpu-serving:environment``), values as text. Exceptions of the program are raised here.
    """
    outcome: list[Graph | BaseException] = []

    def target() -> None:
        try:
            outcome.append(_run_in_this_thread(build, preview, cloud or Cloud(), dict(config or {})))
        except BaseException as error:
            outcome.append(error)

    # A new context: settings, root resource and configuration of Pulumi are context variables.
    thread = threading.Thread(target=contextvars.Context().run, args=(target,), daemon=True)
    thread.start()
    thread.join(_TIME_LIMIT_S)
    assert not thread.is_alive(), f"the program did not settle within {_TIME_LIMIT_S:g} s"
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _run_in_this_thread(build: Callable[[], object], preview: bool, cloud: Cloud, config: dict[str, str]) -> Graph:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # One worker: registrations come in a fixed order. The mock monitor opens a loop in each thread it runs in.
    executor = ThreadPoolExecutor(max_workers=1)
    loop.set_default_executor(executor)
    monitor = _Monitor(cloud, preview)
    # set_mocks leaves these to defaults that the SDK shares between contexts: tasks of an earlier run would be awaited.
    bag: Any = settings.SETTINGS
    bag.outputs, bag.package_refs, bag.base_providers_by_ref = set(), {}, {}
    try:
        mocks.set_mocks(cloud, project=PROJECT, stack=STACK, preview=preview, monitor=monitor)
        pulumi.runtime.set_all_config(config)

        async def program() -> None:
            build()

        loop.run_until_complete(stack.run_pulumi_func(program))
        root = settings.get_root_resource()
        assert isinstance(root, stack.Stack)
        exports = loop.run_until_complete(_resolved(root.outputs))
    finally:
        _cancel_what_is_left(loop)
        executor.submit(_close_loop_of_thread).result()
        executor.shutdown()
        loop.close()
        asyncio.set_event_loop(None)
    return monitor.graph(exports)


async def _resolved(outputs: Mapping[str, Any]) -> Mapping[str, Any]:
    resolved: dict[str, Any] = {}
    for name, value in outputs.items():
        output = pulumi.Output.from_input(value)
        resolved[name] = await output.future() if await output.is_known() else UNKNOWN
    return resolved


def _cancel_what_is_left(loop: asyncio.AbstractEventLoop) -> None:
    """After a failure, registrations are still waiting for each other."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def _close_loop_of_thread() -> None:
    try:
        loop = asyncio.get_event_loop()
    except RuntimeError:
        return
    loop.close()
    asyncio.set_event_loop(None)


class _Monitor(mocks.MockMonitor):
    """Keeps what the stock monitor drops: parents, options, repeated URNs and components' outputs."""

    def __init__(self, cloud: Cloud, preview: bool) -> None:
        super().__init__(cloud)
        cloud.preview = preview
        cloud.remote_resources = self.resources
        self._preview = preview
        self._found: list[dict[str, Any]] = []
        self._outputs: dict[str, tuple[Mapping[str, Any], frozenset[str]]] = {}
        self._invokes: list[Invoke] = []

    def graph(self, exports: Mapping[str, Any]) -> Graph:
        records: list[Record] = []
        for fields in self._found:
            outputs, secrets = self._outputs.get(fields["urn"], (None, frozenset[str]()))
            records.append(Record(**fields, outputs=outputs, secret_outputs=secrets))
        return Graph(records=tuple(records), invokes=tuple(self._invokes), exports=exports, preview=self._preview)

    def make_urn(self, parent: str, type_: str, name: str) -> str:
        # As the engine does: the whole chain of parent types, without the stack's.
        chain = parent.split("::")[2] if parent else _STACK_TYPE
        qualified = type_ if chain == _STACK_TYPE else f"{chain}${type_}"
        return f"urn:pulumi:{STACK}::{PROJECT}::{qualified}::{name}"

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 (the wire protocol's name)
        response = super().RegisterResource(request)
        if request.type != _STACK_TYPE:
            self._record(request, response.urn, request.object)
        return response

    def ReadResource(self, request: Any) -> Any:  # noqa: N802
        response = super().ReadResource(request)
        self._record(request, response.urn, request.properties)
        return response

    def RegisterResourceOutputs(self, request: Any) -> Any:  # noqa: N802
        self._outputs[request.urn] = _plain(rpc.deserialize_properties(request.outputs, keep_unknowns=True))
        return empty_pb2.Empty()

    def Invoke(self, request: Any) -> Any:  # noqa: N802
        if request.tok == "pulumi:pulumi:getResource":
            return super().Invoke(request)
        args, _ = _plain(rpc.deserialize_properties(request.args, keep_unknowns=True))
        self._invokes.append(Invoke(token=request.tok, args=args, provider=request.provider))
        return super().Invoke(request)

    def _record(self, request: Any, urn: str, properties: Any) -> None:
        inputs, secret_paths = _plain(rpc.deserialize_properties(properties, keep_unknowns=True))
        registered = isinstance(request, resource_pb2.RegisterResourceRequest)
        fields: dict[str, Any] = {
            "type": request.type,
            "name": request.name,
            "urn": urn,
            "parent": request.parent,
            "custom": bool(request.custom) if registered else True,
            "inputs": inputs,
            "secret_paths": secret_paths,
            "protect": bool(request.protect) if registered else False,
            "retain_on_delete": bool(request.retainOnDelete) if registered else False,
            "dependencies": tuple(request.dependencies),
            "ignore_changes": tuple(request.ignoreChanges) if registered else (),
            "provider": request.provider,
            "providers": dict(request.providers) if registered else {},
            "aliases": tuple(str(alias) for alias in request.aliases) if registered else (),
            "timeouts": _timeouts(request) if registered else {},
        }
        self._found.append(fields)


def _timeouts(request: Any) -> Mapping[str, str]:
    timeouts = request.customTimeouts
    found = {"create": timeouts.create, "update": timeouts.update, "delete": timeouts.delete}
    return {name: value for name, value in found.items() if value}


def _plain(value: Any, path: str = "") -> tuple[Any, frozenset[str]]:
    """Unwrap secrets and unknowns; the second part holds the paths of secrets."""
    if isinstance(value, Unknown):
        return UNKNOWN, frozenset()
    if rpc.is_rpc_secret(value):
        inner, below = _plain(rpc.unwrap_rpc_secret(value), path)
        return inner, below | {path}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return value, frozenset()
    plain: dict[Any, Any] = {}
    secrets: frozenset[str] = frozenset()
    for key, item in items:
        plain[key], below = _plain(item, f"{path}.{key}" if path else str(key))
        secrets |= below
    return (plain if isinstance(value, dict) else list(plain.values())), secrets
