"""The harness itself: what it records, and that it hides nothing."""

from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s
import pytest

from harness import PREVIEW_MODES, UNKNOWN, run
from harness.cloud import ACCOUNT_ID, Cloud, always


class Pair(pulumi.ComponentResource):
    """A role and a policy that reads the role's ARN."""

    arn: pulumi.Output[str]

    def __init__(self, name: str, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("eks-gpu-serving:index:Pair", name, {}, opts)
        role = aws.iam.Role(
            f"{name}-role",
            assume_role_policy=pulumi.Output.secret("{}"),
            opts=pulumi.ResourceOptions(parent=self, protect=True),
        )
        aws.iam.RolePolicy(
            f"{name}-policy",
            role=role.name,
            policy=pulumi.Output.json_dumps({"arn": role.arn}),
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["policy"]),
        )
        self.arn = role.arn
        self.register_outputs({"arn": role.arn})


def export_pair() -> None:
    pulumi.export("arn", Pair("x").arn)


@pytest.mark.parametrize("preview", PREVIEW_MODES)
def test_parents_options_and_secrets_are_recorded(preview: bool) -> None:
    graph = run(export_pair, preview=preview)

    pair, role, policy = graph.records
    assert (pair.type, pair.custom, role.custom) == ("eks-gpu-serving:index:Pair", False, True)
    assert list(graph.ancestors(role)) == [pair]
    assert (pair.protect, role.protect) == (False, True)
    assert role.secret_paths == {"assumeRolePolicy"}
    assert role.inputs["assumeRolePolicy"] == "{}"
    assert policy.ignore_changes == ("policy",)
    assert policy.dependencies == (role.urn,)


def test_an_update_knows_what_a_preview_can_not() -> None:
    arn = f"arn:aws:iam::{ACCOUNT_ID}:role/x-role-0a1b2c3"

    updated, previewed = run(export_pair), run(export_pair, preview=True)

    assert updated.exports == {"arn": arn}
    assert updated.records[0].outputs == {"arn": arn}
    assert updated.records[2].inputs["policy"] == f'{{"arn": "{arn}"}}'
    assert previewed.exports == {"arn": UNKNOWN}
    assert previewed.records[2].inputs["policy"] == UNKNOWN, "a preview that knows ARNs would hide resources in .apply"


def test_urns_carry_the_chain_of_types_and_repeated_ones_are_kept() -> None:
    class Outer(pulumi.ComponentResource):
        def __init__(self, name: str) -> None:
            super().__init__("eks-gpu-serving:index:Outer", name)
            for _ in range(2):
                Pair("same", pulumi.ResourceOptions(parent=self))

    roles = run(lambda: Outer("o")).of_type("aws:iam/role:Role")

    chain = "eks-gpu-serving:index:Outer$eks-gpu-serving:index:Pair$aws:iam/role:Role"
    assert [role.urn.split("::")[2] for role in roles] == [chain, chain], "the mock monitor keeps only the last of two"


def test_an_error_in_an_apply_that_nobody_returned_is_raised() -> None:
    def build() -> None:
        Pair("x").arn.apply(lambda _: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        run(build)


def test_a_lookup_without_an_answer_says_where_to_add_one() -> None:
    with pytest.raises(NotImplementedError, match="getVpc; add one to tests/harness"):
        run(lambda: aws.ec2.get_vpc_output(id="vpc-1"))


def test_lookups_are_recorded_and_an_answer_can_be_replaced() -> None:
    token = "aws:index/getRegion:getRegion"
    cloud = Cloud(invokes={token: always({"region": "ap-south-1"})})

    graph = run(lambda: pulumi.export("region", aws.get_region_output().region), cloud=cloud)

    assert [invoke.token for invoke in graph.invokes] == [token]
    assert graph.exports == {"region": "ap-south-1"}


def test_runs_leave_nothing_behind() -> None:
    config = {"eks-gpu-serving:environment": "dev"}

    def read_config() -> None:
        pulumi.export("environment", pulumi.Config("eks-gpu-serving").get("environment") or "unset")

    first, second = run(read_config, config=config), run(read_config)

    assert (first.exports, second.exports) == ({"environment": "dev"}, {"environment": "unset"})
    assert run(export_pair).names() == run(export_pair).names(), "resources of one run must not show up in the next"


def test_explicit_providers_and_kubernetes_objects_are_recorded() -> None:
    def build() -> None:
        provider = k8s.Provider("cluster", kubeconfig="{}")
        metadata: Any = {"name": "models", "namespace": "serving"}
        k8s.core.v1.ConfigMap(
            "models", metadata=metadata, data={"a": "1"}, opts=pulumi.ResourceOptions(provider=provider)
        )

    config_map = run(build).one("kubernetes:core/v1:ConfigMap")

    assert config_map.inputs["data"] == {"a": "1"}
    assert config_map.provider.split("::")[3] == "cluster"
