"""The components in a process of their own, as the engine hosts them for TypeScript, YAML and the others.

The process is real, so is everything on the wire; the resource monitor that it registers with is that of the mocks.
"""

import json
import re
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime import rpc
from pulumi.runtime.proto import engine_pb2_grpc, provider_pb2, provider_pb2_grpc, resource_pb2_grpc

import eks_gpu_serving
from eks_gpu_serving import GpuServingStack, GpuServingStackArgs
from eks_gpu_serving.tokens import PACKAGE, token
from harness import Graph, run
from harness.cloud import Cloud
from harness.running import PROJECT, STACK, _close_loop_of_thread, _Monitor

_TIME_LIMIT_S = 60.0
Provider = provider_pb2_grpc.ResourceProviderStub


class _Engine(engine_pb2_grpc.EngineServicer, resource_pb2_grpc.ResourceMonitorServicer):
    """The two services that a hosted component talks to: the log of the engine, and the mock monitor of one run."""

    def __init__(self) -> None:
        self.monitor = _Monitor(Cloud(), preview=False)
        self.address = ""

    def Log(self, request: Any, context: Any) -> Any:  # noqa: N802 (the protocol names it)
        return empty_pb2.Empty()

    def GetDeploymentInfo(self, request: Any, context: Any) -> Any:  # noqa: N802 (the protocol names it)
        return self.monitor.GetDeploymentInfo(request)

    def RegisterPackage(self, request: Any, context: Any) -> Any:  # noqa: N802 (the protocol names it)
        return self.monitor.RegisterPackage(request)

    def RegisterResource(self, request: Any, context: Any) -> Any:  # noqa: N802 (the protocol names it)
        return self.monitor.RegisterResource(request)

    def RegisterResourceOutputs(self, request: Any, context: Any) -> Any:  # noqa: N802 (the protocol names it)
        return self.monitor.RegisterResourceOutputs(request)

    def Invoke(self, request: Any, context: Any) -> Any:  # noqa: N802 (the protocol names it)
        return self.monitor.Invoke(request)


@pytest.fixture(scope="module")
def engine() -> Generator[_Engine]:
    """The services on loopback."""
    engine = _Engine()
    # One worker: the mock monitor opens an event loop in each thread that it runs in.
    with ThreadPoolExecutor(max_workers=1) as executor:
        server = grpc.server(executor)
        engine_pb2_grpc.add_EngineServicer_to_server(engine, server)
        resource_pb2_grpc.add_ResourceMonitorServicer_to_server(engine, server)
        engine.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield engine
        finally:
            server.stop(grace=None).wait(_TIME_LIMIT_S)
            executor.submit(_close_loop_of_thread).result()


@pytest.fixture(scope="module")
def provider(engine: _Engine) -> Generator[Provider]:
    """The provider as the engine starts it: a process that prints its port and answers gRPC."""
    command = [sys.executable, "-m", "pulumi.run.plugin", PACKAGE, engine.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            with grpc.insecure_channel(f"127.0.0.1:{int(process.stdout.readline())}") as channel:
                yield Provider(channel)
        finally:
            process.terminate()


def camel(value: Any) -> Any:
    """Keys as programs in other languages write them; the keys of tags are the user's own."""
    if isinstance(value, list):
        return [camel(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        re.sub(r"_(\w)", lambda match: match[1].upper(), key): item if key == "tags" else camel(item)
        for key, item in value.items()
    }


def construct(provider: Provider, engine: _Engine, mapping: dict[str, Any]) -> tuple[Graph, dict[str, Any]]:
    """What the hosted stack registers, and the outputs that it answers with."""
    engine.monitor = _Monitor(Cloud(), preview=False)
    request = provider_pb2.ConstructRequest(
        project=PROJECT,
        stack=STACK,
        type=token("GpuServingStack"),
        name="serving",
        inputs=json_format.ParseDict(camel(mapping), struct_pb2.Struct()),
        monitorEndpoint=engine.address,
    )
    answer = provider.Construct(request, timeout=_TIME_LIMIT_S)
    return engine.monitor.graph({}), rpc.deserialize_properties(answer.state)


def test_the_plugin_command_serves_every_component_with_the_package_version(provider: Provider) -> None:
    served = json.loads(provider.GetSchema(provider_pb2.GetSchemaRequest(), timeout=_TIME_LIMIT_S).schema)
    assert set(served["resources"]) == {token(name) for name in eks_gpu_serving.COMPONENTS}
    assert served["version"] == version(PACKAGE)


def test_a_hosted_stack_registers_what_a_python_program_would(
    provider: Provider, engine: _Engine, environment: dict[str, Any]
) -> None:
    native = run(lambda: GpuServingStack("serving", GpuServingStackArgs(**environment)))
    hosted, outputs = construct(provider, engine, environment)
    assert {r.urn: r.inputs for r in hosted} == {r.urn: r.inputs for r in native}
    assert outputs["serviceName"] == f"gpu-serving-{environment['environment']}"
    assert outputs["modelRoleArn"].startswith("arn:aws:iam::")


def test_a_hosted_stack_is_refused_with_every_problem(provider: Provider, engine: _Engine, small_stack: Any) -> None:
    mapping = small_stack(pool={"instance_type": "m7i.large"}, model={"uri": "http://models/"})
    with pytest.raises(grpc.RpcError) as refused:
        construct(provider, engine, mapping)
    text = str(refused.value)
    assert "node_groups[0].instance_type: got 'm7i.large'" in text
    assert "models[0].uri: got 'http://models/'" in text
