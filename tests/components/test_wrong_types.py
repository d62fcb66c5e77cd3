"""Components take their arguments from programs in any language: whatever arrives is read or refused by property."""

from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from eks_gpu_serving import (
    GpuNodeGroup,
    GpuServingStack,
    KubeRayOperator,
    ModelAccessRole,
    NvidiaDevicePlugin,
    RayModelService,
    ServingCluster,
)
from harness import run
from harness.cloud import OIDC_ISSUER, OIDC_PROVIDER_ARN

OUTPUT: Any = pulumi.Output.from_input("x")
GOOD: dict[Any, dict[str, Any]] = {
    ServingCluster: {"region": "eu-west-1"},
    GpuNodeGroup: {"cluster_name": "c", "subnet_ids": ["s"], "instance_type": "g6.xlarge", "max_nodes": 1},
    NvidiaDevicePlugin: {},
    ModelAccessRole: {
        "model_uris": ["s3://models/a/"],
        "namespace": "ray-serving",
        "service_account": "worker",
        "oidc_issuer": OIDC_ISSUER,
        "oidc_provider_arn": OIDC_PROVIDER_ARN,
        "region": "eu-west-1",
    },
    KubeRayOperator: {"watch_namespace": "ray-serving"},
}
WRONG: list[tuple[Any, str, Any, str]] = [
    (ServingCluster, "region", 3, "must be text"),
    (ServingCluster, "region", "", "is empty"),
    (ServingCluster, "region", "mars", "must be an AWS region"),
    (ServingCluster, "existing_name", "a b", "must match"),
    (ServingCluster, "kubernetes_version", 1.35, "must be text"),
    (ServingCluster, "kubernetes_version", "1.29", "must be one of 1.34"),
    (ServingCluster, "enable_public_endpoint", "yes", "must be true or false"),
    (ServingCluster, "private_subnet_ids", "subnet-a", "must be a list"),
    (ServingCluster, "private_subnet_ids", [3], "must be text"),
    (ServingCluster, "public_access_cidrs", ["10.0.0.1/8"], "without host bits"),
    (ServingCluster, "system_nodes", True, "must be a whole number"),
    (ServingCluster, "system_nodes", 1.5, "must be a whole number"),
    (ServingCluster, "tags", ["a"], "must be a mapping of text to text"),
    (ServingCluster, "tags", {"a": 1}, "must be a mapping of text to text"),
    (GpuNodeGroup, "max_nodes", "3", "must be a whole number"),
    (GpuNodeGroup, "max_nodes", float("nan"), "must be a whole number"),
    (GpuNodeGroup, "max_nodes", 10**400, "must be 1 to 450"),
    (GpuNodeGroup, "instance_type", OUTPUT, "must be plain"),
    (GpuNodeGroup, "cluster_name", "", "is empty"),
    (GpuNodeGroup, "subnet_ids", {"a": "b"}, "must be a list"),
    (GpuNodeGroup, "operating_system", 3, "must be one of al2023, bottlerocket"),
    (GpuNodeGroup, "labels", "a=b", "must be a mapping"),
    (NvidiaDevicePlugin, "chart_version", 0.18, "must be text"),
    (NvidiaDevicePlugin, "namespace", "", "is empty"),
    (ModelAccessRole, "model_uris", "s3://models/a/", "must be a list"),
    (ModelAccessRole, "model_uris", [None], "must be text"),
    (ModelAccessRole, "kms_key_arns", "arn", "must be a list"),
    (ModelAccessRole, "oidc_issuer", 3, "must be text"),
    (ModelAccessRole, "oidc_provider_arn", "", "is empty"),
    (KubeRayOperator, "watch_namespace", "", "is empty"),
    (KubeRayOperator, "watch_namespace", "*", "must be the exact name of one namespace"),
    (KubeRayOperator, "namespace", "kube-system", "is not the stack's own"),
    (KubeRayOperator, "crd_source", 3, "must be text"),
]


def refused(component: Callable[..., object], given: Any) -> dict[str, str]:
    with pytest.raises(pulumi.InputPropertiesError) as caught:
        run(lambda: component("x", given))
    return {error["property_path"]: error["reason"] for error in caught.value.errors or []}


@pytest.mark.parametrize("component", GOOD, ids=lambda component: component.__name__)
def test_the_arguments_that_the_cases_change_are_good(component: Any) -> None:
    run(lambda: component("x", GOOD[component]))


@pytest.mark.parametrize(("component", "name", "value", "reason"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_value_is_refused_by_property(component: Any, name: str, value: Any, reason: str) -> None:
    found = refused(component, {**GOOD[component], name: value})
    assert reason in found.pop(name)
    assert found == {}


@pytest.mark.parametrize("component", [*GOOD, GpuServingStack, RayModelService], ids=lambda c: c.__name__)
@pytest.mark.parametrize("given", [None, 3, "text", []], ids=range(4))
def test_what_are_no_arguments_is_refused_in_words(component: Any, given: Any) -> None:
    assert "mapping" in refused(component, given)["args"]


def test_outputs_and_lists_of_outputs_are_taken_where_they_are_inputs() -> None:
    given = {**GOOD[GpuNodeGroup], "cluster_name": OUTPUT, "subnet_ids": [OUTPUT, "s"]}
    run(lambda: GpuNodeGroup("x", given))  # type: ignore[arg-type]
    run(lambda: GpuNodeGroup("x", {**given, "subnet_ids": pulumi.Output.from_input(["s"])}))  # type: ignore[arg-type]


@pytest.mark.parametrize("role", [3, "models", ""])
def test_a_role_that_is_no_arn_is_refused(role: Any, small_stack: Any) -> None:
    assert (
        "must be the ARN of a role"
        in refused(RayModelService, {**small_stack(), "model_role_arn": role})["model_role_arn"]
    )


def test_an_output_in_the_settings_of_a_stack_is_refused_with_its_key(small_stack: Any) -> None:
    found = refused(GpuServingStack, small_stack(model={"uri": OUTPUT}, region=OUTPUT))
    assert set(found) == {"region", "models[0].uri"}


@pytest.mark.parametrize("component", [ServingCluster, GpuNodeGroup, ModelAccessRole], ids=lambda c: c.__name__)
def test_tags_that_aws_refuses_are_refused_by_every_component_that_has_some(component: Any) -> None:
    found = refused(component, {**GOOD[component], "tags": {"aws:a": "b", "k" * 200: "v"}})
    assert set(found) == {"tags.aws:a", f"tags.{'k' * 200}"}
