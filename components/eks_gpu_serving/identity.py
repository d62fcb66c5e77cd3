"""The AWS identity of the pods that read models: one role, one service account, the models' prefixes, nothing else."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from eks_gpu_serving import aws_rules, name_limits
from eks_gpu_serving.args import raise_problems, read_args
from eks_gpu_serving.identity_documents import (
    irsa_trust_document,
    model_read_document,
    policy_problem,
    to_policy_text,
)
from eks_gpu_serving.kubernetes_rules import OBJECT_NAME
from eks_gpu_serving.name_limits import name_problem
from eks_gpu_serving.tokens import token
from ray_model_serving.contract.uris import BadUriError, parse_model_uri


@dataclass(frozen=True, kw_only=True)
class ModelAccessRoleArgs:
    """Arguments of :class:`ModelAccessRole`."""

    model_uris: Sequence[str]
    """``s3://bucket/prefix/`` of each model. ``file://`` needs no permission."""
    namespace: str
    """Kubernetes namespace of the service account."""
    service_account: str
    """Name of the service account, exactly; no wildcard."""
    oidc_issuer: pulumi.Input[str]
    """The cluster's OIDC issuer, with or without ``https://``."""
    oidc_provider_arn: pulumi.Input[str]
    """ARN of the IAM OIDC provider of that issuer."""
    region: str
    """Region of the buckets and their keys, such as us-east-1."""
    kms_key_arns: Sequence[str] | None = None
    """Keys that the buckets are encrypted with; ARNs of keys, not of aliases. Default: none."""
    tags: Mapping[str, str] | None = None
    """Tags of the role."""


class ModelAccessRole(pulumi.ComponentResource):
    """A role that one service account may assume to read the models, prefix by prefix (IRSA).

    Creates:

    - an IAM role whose trust names the service account and the audience in one condition;
    - its inline policy: ListBucket and GetObject below each prefix, kms:Decrypt through S3 where keys are given.

    Does not:

    - create the service account; annotate it with ``eks.amazonaws.com/role-arn: <role_arn>``;
    - write, delete, or read anything outside the prefixes;
    - create the OIDC provider.
    """

    role_arn: pulumi.Output[str]
    """ARN of the role, for the service account's annotation and for ``expected_role_arn``."""

    def __init__(self, name: str, args: ModelAccessRoleArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(token("ModelAccessRole"), name, {}, opts)
        args = read_args(ModelAccessRoleArgs, args, f"ModelAccessRole {name!r}")
        raise_problems(f"ModelAccessRole {name!r}", _problems(name, args))
        namespace, service_account = args.namespace, args.service_account

        def trust(values: Mapping[str, str]) -> str:
            return to_policy_text(irsa_trust_document(**values, namespace=namespace, service_account=service_account))

        self.role = aws.iam.Role(
            f"{name}-role",
            description=f"Reads models for {namespace}/{service_account}",
            assume_role_policy=pulumi.Output.all(
                oidc_provider_arn=args.oidc_provider_arn, oidc_issuer=args.oidc_issuer
            ).apply(trust),
            tags=args.tags,
            opts=pulumi.ResourceOptions(parent=self),
        )

        document = model_read_document(
            model_uris=args.model_uris, region=args.region, kms_key_arns=args.kms_key_arns or ()
        )
        if document is not None:
            aws.iam.RolePolicy(
                f"{name}-read-models",
                role=self.role.name,
                policy=to_policy_text(document),
                opts=pulumi.ResourceOptions(parent=self),
            )

        self.role_arn = self.role.arn
        self.register_outputs({"role_arn": self.role_arn})


def _problems(name: str, args: ModelAccessRoleArgs) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    too_long = name_problem(name, name_limits.MODEL_ROLE)
    if too_long:
        found.append(("name", too_long))
    for field in ("namespace", "service_account"):
        value = getattr(args, field)
        if not OBJECT_NAME.fullmatch(value):
            found.append((field, f"got {value!r}, must be the exact name of one Kubernetes object, without wildcards"))
    if not re.fullmatch(aws_rules.REGION, args.region):
        found.append(("region", f"got {args.region!r}, must be an AWS region such as us-east-1"))
    for index, text in enumerate(args.model_uris):
        try:
            parse_model_uri(text)
        except BadUriError as error:
            found.append((f"model_uris[{index}]", str(error)))
    found += aws_rules.tag_problems(args.tags)
    for index, arn in enumerate(args.kms_key_arns or ()):
        if not re.fullmatch(aws_rules.KEY_ARN, arn):
            found.append((f"kms_key_arns[{index}]", f"got {arn!r}, must be the ARN of a key; an alias grants nothing"))
    if not found:
        too_large = policy_problem(model_uris=args.model_uris, region=args.region, kms_key_arns=args.kms_key_arns or ())
        found += [("model_uris", too_large)] if too_large else []
    return found
