"""ModelAccessRole under mocks."""

import json
from typing import Any

import pulumi
import pytest

from eks_gpu_serving.identity import ModelAccessRole, ModelAccessRoleArgs
from harness import PREVIEW_MODES, UNKNOWN, Graph, run
from harness.cloud import OIDC_ISSUER, OIDC_PROVIDER_ARN
from harness.properties import collisions, same_resources, violations

ROLE = "aws:iam/role:Role"
POLICY = "aws:iam/rolePolicy:RolePolicy"
TAGS = {"team": "search"}
BASE: dict[str, Any] = {
    "model_uris": ["s3://models/llm/v1/"],
    "namespace": "ray-serving",
    "service_account": "worker",
    "oidc_issuer": OIDC_ISSUER,
    "oidc_provider_arn": OIDC_PROVIDER_ARN,
    "region": "eu-west-1",
    "tags": TAGS,
}


def role(name: str = "models", **changes: Any) -> ModelAccessRole:
    return ModelAccessRole(name, ModelAccessRoleArgs(**{**BASE, **changes}))


def built(preview: bool = False, **changes: Any) -> Graph:
    return run(lambda: role(**changes), preview=preview)


def refused(**changes: Any) -> dict[str, str]:
    with pytest.raises(pulumi.InputPropertiesError) as caught:
        built(**changes)
    return {error["property_path"]: error["reason"] for error in caught.value.errors or []}


@pytest.mark.parametrize("preview", PREVIEW_MODES)
def test_it_keeps_the_rules_of_every_graph(preview: bool) -> None:
    assert violations(built(preview), tags=TAGS) == []
    assert same_resources(role) == []
    assert collisions(role) == []


def test_it_is_one_role_with_one_policy() -> None:
    assert built().names() == [
        (ROLE, "models-role"),
        (POLICY, "models-read-models"),
        ("eks-gpu-serving:index:ModelAccessRole", "models"),
    ]


@pytest.mark.parametrize("preview", PREVIEW_MODES)
def test_outputs_reach_the_trust_as_values(preview: bool) -> None:  # UR-058, UR-059
    def build() -> None:
        issuer: Any = pulumi.Output.from_input(f"https://{OIDC_ISSUER}")
        role(oidc_issuer=issuer)

    graph = run(build, preview=preview)

    (statement,) = json.loads(graph.one(ROLE).inputs["assumeRolePolicy"])["Statement"]
    assert statement["Principal"] == {"Federated": OIDC_PROVIDER_ARN}
    assert statement["Condition"] == {
        "StringEquals": {
            f"{OIDC_ISSUER}:sub": "system:serviceaccount:ray-serving:worker",
            f"{OIDC_ISSUER}:aud": "sts.amazonaws.com",
        }
    }


def test_a_new_cluster_leaves_the_trust_unknown_in_a_preview_and_the_policy_known() -> None:
    def build() -> None:
        other = role("first")
        role("second", oidc_provider_arn=other.role_arn)

    graph = run(build, preview=True)

    assert graph.one(ROLE, "second-role").inputs["assumeRolePolicy"] == UNKNOWN
    assert "models/llm/v1/*" in graph.one(POLICY, "second-read-models").inputs["policy"]


def test_the_arn_is_an_output() -> None:
    graph = run(lambda: pulumi.export("arn", role().role_arn))

    assert graph.exports == {"arn": "arn:aws:iam::123456789012:role/models-role-0a1b2c3"}


def test_models_on_disk_get_an_identity_without_permissions() -> None:
    graph = built(model_uris=["file:///models/a/"])

    assert graph.of_type(POLICY) == []
    assert len(graph.of_type(ROLE)) == 1, "pods still refuse to run under another identity"


@pytest.mark.parametrize("name", ["*", "work*er", "system:worker", "Worker"])
def test_a_service_account_that_is_no_exact_name_is_refused(name: str) -> None:  # UR-059
    reasons = refused(service_account=name, namespace=name)

    assert set(reasons) == {"service_account", "namespace"}
    assert "without wildcards" in reasons["service_account"]


@pytest.mark.parametrize("field", ["oidc_issuer", "oidc_provider_arn", "namespace", "service_account"])
def test_an_identity_of_nobody_is_refused(field: str) -> None:
    assert "is empty" in refused(**{field: ""})[field]


def test_every_refusal_comes_at_once_and_by_property() -> None:
    reasons = refused(
        model_uris=["s3://models/a/", "models/b", "s3://models"],
        region="europe",
        kms_key_arns=["arn:aws:kms:eu-west-1:123456789012:alias/models"],
    )

    assert set(reasons) == {"model_uris[1]", "model_uris[2]", "region", "kms_key_arns[0]"}
    assert "got 'models/b'" in reasons["model_uris[1]"]
    assert "an alias grants nothing" in reasons["kms_key_arns[0]"]


def test_more_prefixes_than_iam_takes_are_refused() -> None:
    reasons = refused(model_uris=[f"s3://models/{'x' * 50}-{index}/" for index in range(100)])

    assert "IAM takes 10240" in reasons["model_uris"]


def test_a_name_that_makes_a_role_name_too_long_is_refused() -> None:
    with pytest.raises(pulumi.InputPropertiesError, match="at most 51"):
        run(lambda: role("x" * 52))
