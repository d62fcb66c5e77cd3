"""IAM documents as plain values: who may assume a role, and what a model reader may do."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ray_model_serving.contract.uris import S3Uri, parse_model_uri

_VERSION = "2012-10-17"
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html: all inline policies of a role together,
# without white space.
MAX_INLINE_POLICY_CHARACTERS = 10_240


def partition_of(region: str) -> str:
    """The AWS partition of a region, such as ``aws-cn``."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def service_domain(partition: str) -> str:
    """The domain of service principals and endpoints."""
    return "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"


def ec2_trust_document(partition: str) -> dict[str, Any]:
    """Lets EC2 instances be the role."""
    principal = {"Service": f"ec2.{service_domain(partition)}"}
    return _document([{"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}])


def irsa_trust_document(
    *, oidc_provider_arn: str, oidc_issuer: str, namespace: str, service_account: str
) -> dict[str, Any]:
    """Lets exactly one service account of one cluster be the role (IAM roles for service accounts).

    ``oidc_issuer`` may carry ``https://``; trust conditions are written without it. Both conditions stand in one
    ``StringEquals``: with a second block of that name the first would be lost, and every service account could assume
    the role.
    """
    issuer = oidc_issuer.removeprefix("https://")
    conditions = {
        f"{issuer}:sub": f"system:serviceaccount:{namespace}:{service_account}",
        f"{issuer}:aud": "sts.amazonaws.com",
    }
    return _document(
        [
            {
                "Effect": "Allow",
                "Principal": {"Federated": oidc_provider_arn},
                "Action": "sts:AssumeRoleWithWebIdentity",
                "Condition": {"StringEquals": conditions},
            }
        ]
    )


def model_read_document(
    *, model_uris: Iterable[str], region: str, kms_key_arns: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Lets a role list and read the objects below each ``s3://bucket/prefix/``, and nothing else.

    Models on disk (``file://``) need no permission; None where no other is named. A prefix ends with a slash, so that
    ``llm/v1`` does not open ``llm/v10``. Listing is allowed because S3 answers 403 for a missing key without it.
    ``kms_key_arns`` are the keys of encrypted buckets, usable through S3 in ``region`` only. Raises ``BadUriError``.
    """
    partition = partition_of(region)
    statements: list[Mapping[str, Any]] = []
    for index, (bucket, prefixes) in enumerate(sorted(_prefixes_by_bucket(model_uris).items()), start=1):
        arn = f"arn:{partition}:s3:::{bucket}"
        patterns = [f"{_literal(prefix)}*" for prefix in prefixes]
        statements += [
            {
                "Sid": f"ListModels{index}",
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": arn,
                "Condition": {"StringLike": {"s3:prefix": patterns}},
            },
            {
                "Sid": f"ReadModels{index}",
                "Effect": "Allow",
                # A read that names a version, as in a versioned bucket, is the second action and not the first.
                "Action": ["s3:GetObject", "s3:GetObjectVersion"],
                "Resource": [f"{arn}/{pattern}" for pattern in patterns],
            },
        ]
    if not statements:
        return None
    if kms_key_arns:
        via = f"s3.{region}.{service_domain(partition)}"
        statements.append(
            {
                "Sid": "DecryptModels",
                "Effect": "Allow",
                "Action": "kms:Decrypt",
                "Resource": sorted(set(kms_key_arns)),
                "Condition": {"StringEquals": {"kms:ViaService": via}},
            }
        )
    return _document(statements)


def policy_problem(*, model_uris: Sequence[str], region: str, kms_key_arns: Sequence[str] = ()) -> str | None:
    """Why IAM would refuse the document of these models as a role's inline policy, or None."""
    document = model_read_document(model_uris=model_uris, region=region, kms_key_arns=kms_key_arns)
    length = len(to_policy_text(document)) if document else 0
    if length <= MAX_INLINE_POLICY_CHARACTERS:
        return None
    limit = f"IAM takes {MAX_INLINE_POLICY_CHARACTERS}; put the models below a common prefix"
    return f"{len(model_uris)} URIs make a policy of {length} characters, {limit}"


def to_policy_text(document: Mapping[str, Any]) -> str:
    """The document as IAM takes it, without white space, which counts towards IAM's limits."""
    return json.dumps(document, separators=(",", ":"))


def _prefixes_by_bucket(model_uris: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for text in model_uris:
        uri = parse_model_uri(text)
        if isinstance(uri, S3Uri):
            found.setdefault(uri.bucket, set()).add(uri.prefix)
    return {bucket: sorted(prefixes) for bucket, prefixes in found.items()}


def _literal(prefix: str) -> str:
    """A key prefix with what IAM would read as a wildcard or a variable made literal."""
    return "".join(f"${{{character}}}" if character in "*?$" else character for character in prefix)


def _document(statements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"Version": _VERSION, "Statement": list(statements)}
