"""The component: what it creates, and what it tells Pulumi about it."""

import json
from typing import Any

import pulumi
import pulumi_aws as aws
import pytest
import yaml

from eks_gpu_serving.ray_service.ray_model_service import RayModelService, RayModelServiceArgs
from harness import PREVIEW_MODES, UNKNOWN, Graph, run
from harness.properties import same_resources, violations

ROLE = "arn:aws:iam::123456789012:role/models"
SERVICE = "kubernetes:ray.io/v1:RayService"
ACCOUNT = "kubernetes:core/v1:ServiceAccount"


def build(mapping: dict[str, Any]) -> None:
    """The component with a role that a preview doesn't know yet."""
    role = aws.iam.Role("models", name="models", assume_role_policy="{}")
    RayModelService("serving", RayModelServiceArgs(**mapping, model_role_arn=role.arn))


def graph(mapping: dict[str, Any], *, preview: bool = False) -> Graph:
    return run(lambda: build(mapping), preview=preview)


@pytest.mark.parametrize("preview", PREVIEW_MODES)
def test_it_keeps_the_rules_of_every_graph(preview: bool, small_stack: Any) -> None:
    def alone() -> None:
        RayModelService("serving", RayModelServiceArgs(**small_stack(), model_role_arn=ROLE))

    assert violations(run(alone, preview=preview)) == []
    assert same_resources(alone) == []


def test_a_preview_shows_everything_but_what_needs_the_role(small_stack: Any) -> None:
    updated, previewed = (dict(graph(small_stack(), preview=p).one(SERVICE).inputs["spec"]) for p in PREVIEW_MODES)
    assert previewed.pop("serveConfigV2") == UNKNOWN
    config = yaml.safe_load(updated.pop("serveConfigV2"))
    assert config["applications"][0]["args"]["expected_role_arn"] == ROLE
    assert previewed == updated, "a reviewer of the preview has to see what happens to the pods"


def test_workers_get_the_role_and_the_head_gets_none(small_stack: Any) -> None:
    found = graph(small_stack())
    head, worker = (found.one(ACCOUNT, f"serving-{role}").inputs["metadata"] for role in ("head", "worker"))
    assert worker["annotations"] == {"eks.amazonaws.com/role-arn": ROLE}
    assert "annotations" not in head, "KubeRay lets it change pods; it is not also to read the models"
    spec = found.one(SERVICE).inputs["spec"]["rayClusterConfig"]
    accounts = [g["template"]["spec"]["serviceAccountName"] for g in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    assert accounts == [head["name"], worker["name"]]


def test_the_update_waits_until_the_service_is_ready_and_no_longer_than_the_plan_allows(small_stack: Any) -> None:
    annotations = graph(small_stack()).one(SERVICE).inputs["metadata"]["annotations"]
    assert annotations["pulumi.com/waitFor"] == "condition=Ready"
    assert int(annotations["pulumi.com/timeoutSeconds"]) > 300, "a first node, its image and a load take minutes"
    assert annotations["pulumi.com/patchForce"] == "true", "the operator owns workerGroupSpecs after its first update"


def test_it_comes_after_its_accounts_and_its_prefetch_list(small_stack: Any) -> None:
    found = graph(small_stack())
    needed = [
        found.one("kubernetes:core/v1:Namespace"),
        *found.of_type(ACCOUNT),
        found.one("kubernetes:core/v1:ConfigMap"),
    ]
    assert {record.urn for record in needed} <= set(found.one(SERVICE).dependencies)


def test_what_a_host_for_another_language_delivers_makes_the_same_resources(small_stack: Any) -> None:
    given: Any = {**json.loads(json.dumps(small_stack(), default=str), parse_int=float), "model_role_arn": ROLE}
    typed = RayModelServiceArgs(**small_stack(), model_role_arn=ROLE)
    hosted, native = run(lambda: RayModelService("serving", given)), run(lambda: RayModelService("serving", typed))
    assert {r.urn: r.inputs for r in hosted} == {r.urn: r.inputs for r in native}


def test_every_problem_of_the_settings_is_reported_by_property(small_stack: Any) -> None:
    mapping = small_stack(pool={"max_nodes": 0}, model={"max_concurrent_queries": 4})
    with pytest.raises(pulumi.InputPropertiesError) as refused:
        run(lambda: RayModelService("serving", RayModelServiceArgs(**mapping)))
    assert [error["property_path"] for error in refused.value.errors or []] == [
        "node_groups[0].max_nodes",
        "models[0].max_concurrent_queries",
    ]
    assert "max_ongoing_requests" in str(refused.value)
