"""Each property rule finds what it is for, and leaves a good graph alone."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s
import pytest

from harness import PREVIEW_MODES, run
from harness.properties import collisions, same_resources, violations

TAGS = {"team": "search"}
TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"},
        ],
    }
)

Children = Callable[[str, pulumi.ResourceOptions], object]


class Holder(pulumi.ComponentResource):
    """A component of ours around the children of a test."""

    def __init__(self, name: str, children: Children) -> None:
        super().__init__("eks-gpu-serving:index:Holder", name)
        children(name, pulumi.ResourceOptions(parent=self))
        self.register_outputs({})


def role(name: str, opts: pulumi.ResourceOptions, /, **changes: Any) -> aws.iam.Role:
    arguments: dict[str, Any] = {"assume_role_policy": TRUST, "tags": TAGS, **changes}
    return aws.iam.Role(f"{name}-role", opts=opts, **arguments)


def template(name: str, opts: pulumi.ResourceOptions, /, **changes: Any) -> aws.ec2.LaunchTemplate:
    good: dict[str, Any] = {
        "metadata_options": {"http_tokens": "required", "http_put_response_hop_limit": 1},
        "block_device_mappings": [{"device_name": "/dev/xvda", "ebs": {"encrypted": "true"}}],
        "tag_specifications": [{"resource_type": kind, "tags": TAGS} for kind in ("instance", "volume")],
        "tags": TAGS,
    }
    return aws.ec2.LaunchTemplate(f"{name}-template", **{**good, **changes}, opts=opts)


def found(children: Children, *, preview: bool = False, **options: Any) -> list[str]:
    return violations(run(lambda: Holder("h", children), preview=preview), tags=TAGS, **options)


def policy(statement: dict[str, Any]) -> Children:
    document = json.dumps({"Version": "2012-10-17", "Statement": {"Effect": "Allow", **statement}})
    return lambda name, opts: aws.iam.RolePolicy(f"{name}-policy", role="r", policy=document, opts=opts)


def config_map(data: dict[str, Any]) -> Children:
    return lambda name, opts: k8s.core.v1.ConfigMap(f"{name}-map", metadata={"name": name}, data=data, opts=opts)


def pod(image: str) -> Children:
    def children(name: str, opts: pulumi.ResourceOptions) -> None:
        spec: Any = {"containers": [{"name": "a", "image": image}]}
        k8s.core.v1.Pod(f"{name}-pod", metadata={"name": name}, spec=spec, opts=opts)

    return children


def node_group(max_size: int) -> Children:
    scaling: Any = {"min_size": 0, "desired_size": 0, "max_size": max_size}
    common: Any = {"cluster_name": "c", "node_role_arn": "arn:aws:iam::1:role/r", "subnet_ids": ["s"], "tags": TAGS}
    return lambda name, opts: aws.eks.NodeGroup(f"{name}-nodes", scaling_config=scaling, **common, opts=opts)


@pytest.mark.parametrize("preview", PREVIEW_MODES)
def test_a_good_graph_breaks_no_rule(preview: bool) -> None:
    def children(name: str, opts: pulumi.ResourceOptions) -> None:
        made = role(name, opts)
        template(name, opts)
        node_group(2)(name, opts)
        aws.iam.RolePolicyAttachment(f"{name}-attachment", role=made.name, policy_arn=made.arn, opts=opts)
        pod("registry/app@sha256:0123")(name, opts)

    assert found(children, preview=preview) == []


BAD: dict[str, tuple[Children, str]] = {
    "an Output in text": (config_map({"a": "Calling __str__ on an Output[T] is not supported"}), "turned into text"),
    "an Output in a key": (config_map({"<pulumi.output.Output object at 0x7f>": "a"}), "turned into text"),
    "an Output in JSON": (config_map({"a": '{"x": [{"<Output[T]>:sub": 1}]}'}), "turned into text"),
    "None in an ARN": (config_map({"a": "arn:aws:s3:::None/*"}), "'None' in"),
    "None in base64": (
        config_map({"a": base64.b64encode(b"issuer: None:sub, and more of it\n" * 2).decode()}),
        "'None' in",
    ),
    "every action": (policy({"Action": "s3:*", "Resource": "arn:aws:s3:::m"}), "action 's3:*'"),
    "every resource": (policy({"Action": "s3:GetObject", "Resource": "*"}), "resource '*'"),
    "all but a list": (policy({"NotAction": "iam:PassRole", "Resource": "arn:aws:s3:::m"}), "everything but"),
    "every principal": (policy({"Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}), "principal '*'"),
    "no tags": (lambda n, o: role(n, o, tags={}), "without team"),
    "no volume tags": (
        lambda n, o: template(n, o, tag_specifications=[{"resource_type": "instance", "tags": TAGS}]),
        "tags of volumes",
    ),
    "IMDSv1": (lambda n, o: template(n, o, metadata_options={"http_tokens": "optional"}), "IMDSv2"),
    "a plain volume": (
        lambda n, o: template(n, o, block_device_mappings=[{"device_name": "/dev/xvda", "ebs": {"volume_size": 9}}]),
        "not encrypted",
    ),
    "no volume": (lambda n, o: template(n, o, block_device_mappings=[]), "blockDeviceMappings"),
    "latest": (pod("registry:5000/app:latest"), "no fixed tag"),
    "no tag": (pod("registry:5000/app"), "no fixed tag"),
    "a floating chart": (lambda n, o: k8s.helm.v3.Release(f"{n}-chart", chart="c", opts=o), "not one chart version"),
    "too many nodes": (node_group(451), "not a bound"),
    "a foreign name": (lambda _n, o: role("other", o), "not named after"),
    "one URN twice": (lambda n, o: [role(n, o), role(n, o)], "is registered 2 times"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_graph_is_reported(case: str) -> None:  # UR-058 and the house rules
    children, expected = BAD[case]

    sentences = found(children)

    assert any(expected in sentence for sentence in sentences), sentences


def test_a_statement_may_be_allowed_every_resource_by_its_id() -> None:
    children = policy({"Sid": "PriceList", "Action": "pricing:GetProducts", "Resource": "*"})

    assert found(children, allow_star=frozenset({"PriceList"})) == []


def test_a_resource_outside_our_components_is_reported() -> None:
    graph = run(lambda: aws.iam.Role("alone", assume_role_policy=TRUST, tags=TAGS))

    assert violations(graph, tags=TAGS) == ["aws:iam/role:Role 'alone' has none of our components as an ancestor"]


def test_a_component_without_register_outputs_is_reported() -> None:
    graph = run(lambda: pulumi.ComponentResource("eks-gpu-serving:index:Mute", "m"))

    assert violations(graph) == ["eks-gpu-serving:index:Mute 'm' never calls register_outputs"]


def test_a_resource_made_inside_an_apply_is_reported() -> None:
    def children(name: str, opts: pulumi.ResourceOptions) -> None:
        role(name, opts).arn.apply(lambda _: role(f"{name}-late", opts))

    assert same_resources(lambda: Holder("h", children)) == ["aws:iam/role:Role 'h-late-role' is not in both modes"]


def test_two_instances_that_share_a_name_are_reported() -> None:
    shared = collisions(lambda name: Holder(name, lambda n, o: role(n, o, name="fixed")))
    apart = collisions(lambda name: Holder(name, role))

    assert shared == ["aws:iam/role:Role: 2 resources are called 'fixed'"]
    assert apart == []
