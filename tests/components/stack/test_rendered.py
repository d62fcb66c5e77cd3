"""What ``gpu-serving render`` shows is what an update sends: the same documents, from the same renderers."""

import base64
import json
from collections.abc import Callable
from typing import Any

import yaml

from eks_gpu_serving.documents import render_all
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.refs import CloudRefs
from eks_gpu_serving.settings import StackSettings
from harness import Graph

KINDS = {
    "Namespace": "kubernetes:core/v1:Namespace",
    "ServiceAccount": "kubernetes:core/v1:ServiceAccount",
    "ConfigMap": "kubernetes:core/v1:ConfigMap",
    "RayService": "kubernetes:ray.io/v1:RayService",
}
STACK = "eks-gpu-serving:index:GpuServingStack"
CLUSTER = "eks-gpu-serving:index:ServingCluster"


def rendered(mapping: dict[str, Any], found: Graph) -> dict[str, str]:
    """Every document, with the values that the cloud of the tests answered."""
    settings = StackSettings.from_mapping(mapping)
    stack, cluster = found.one(STACK).outputs, found.one(CLUSTER).outputs
    assert stack is not None
    assert cluster is not None
    refs = CloudRefs(
        cluster_name=cluster["cluster_name"],
        cluster_endpoint=cluster["endpoint"],
        cluster_certificate_authority=cluster["certificate_authority"],
        cluster_service_cidr=cluster["service_cidr"],
        oidc_issuer=cluster["oidc_issuer"],
        oidc_provider_arn=cluster["oidc_provider_arn"],
        model_role_arn=stack["model_role_arn"],
    )
    return render_all(settings, plan(settings), refs)


def sent(found: Graph, mapping: dict[str, Any]) -> dict[str, Any]:
    """The same documents, out of what was registered."""
    role, policy = found.one("aws:iam/role:Role", "serving-models-role"), found.one("aws:iam/rolePolicy:RolePolicy")
    documents: dict[str, Any] = {
        "identity/models-trust-policy.json": json.loads(role.inputs["assumeRolePolicy"]),
        "identity/models-policy.json": json.loads(policy.inputs["policy"]),
        "kuberay/values.yaml": found.one("kubernetes:helm.sh/v3:Release", "serving-kuberay-release").inputs["values"],
        "kuberay/crd-files.yaml": found.one("kubernetes:yaml/v2:ConfigGroup").inputs["files"],
    }
    for release in found.of_type("kubernetes:helm.sh/v3:Release"):
        if release.name == "serving-device-plugin-release":
            documents["accelerators/device-plugin-values.yaml"] = release.inputs["values"]
    for group in mapping["node_groups"]:
        template = found.one("aws:ec2/launchTemplate:LaunchTemplate", f"serving-{group['name']}-template")
        suffix = "toml" if group.get("operating_system") == "bottlerocket" else "mime"
        text = base64.b64decode(template.inputs["userData"]).decode()
        documents[f"nodes/{group['name']}/user-data.{suffix}"] = text
    return documents


def parsed(name: str, text: str) -> Any:
    if name.endswith(".json"):
        return json.loads(text)
    return yaml.safe_load(text) if name.endswith(".yaml") else text


def test_every_document_is_what_an_update_sends(environment: dict[str, Any], graph: Callable[..., Graph]) -> None:
    found = graph(environment)
    shown = {name: parsed(name, text) for name, text in rendered(environment, found).items()}
    objects = {name: shown.pop(name) for name in list(shown) if name.startswith("ray-service/")}
    assert shown == sent(found, environment)
    assert len(objects) == 5
    for name, document in objects.items():
        (given,) = [
            record.inputs
            for record in found.of_type(KINDS[document["kind"]])
            if record.inputs["metadata"]["name"] == document["metadata"]["name"]
        ]
        assert given == document, name


def test_keys_and_definitions_of_ones_own_are_rendered_as_they_are_sent(
    small_stack: Callable[..., dict[str, Any]], graph: Callable[..., Graph]
) -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/0a1b2c3d-0000-0000-0000-000000000000"
    mapping = small_stack(models_kms_key_arns=[key], kuberay={"crd_source": "/crds"})
    found = graph(mapping)
    shown = {name: parsed(name, text) for name, text in rendered(mapping, found).items()}
    given = sent(found, mapping)
    assert key in str(given["identity/models-policy.json"])
    assert {name: shown[name] for name in given} == given
