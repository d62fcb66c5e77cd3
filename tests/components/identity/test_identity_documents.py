"""Trust and policy documents: exactly what is needed (UR-059, UR-062)."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from eks_gpu_serving.identity_documents import (
    ec2_trust_document,
    irsa_trust_document,
    model_read_document,
    partition_of,
    to_policy_text,
)
from eks_gpu_serving.refs import PLACEHOLDERS
from harness.cloud import OIDC_ISSUER, OIDC_PROVIDER_ARN
from harness.policies import as_list
from ray_model_serving.contract.uris import BadUriError

READ = ["s3:GetObject", "s3:GetObjectVersion"]
KEY = "arn:aws:kms:eu-west-1:123456789012:key/0a1b2c3d-0000-0000-0000-000000000000"


def trust(**changes: str) -> dict[str, Any]:
    arguments = {
        "oidc_provider_arn": OIDC_PROVIDER_ARN,
        "oidc_issuer": OIDC_ISSUER,
        "namespace": "ray-serving",
        "service_account": "gpu-serving-dev-worker",
        **changes,
    }
    return irsa_trust_document(**arguments)


def policy(*uris: str, region: str = "eu-west-1", keys: tuple[str, ...] = ()) -> dict[str, Any]:
    document = model_read_document(model_uris=uris, region=region, kms_key_arns=keys)
    assert document is not None
    return document


def iam_matches(pattern: str, value: str) -> bool:
    """IAM's StringLike and resource matching: ``*`` and ``?``, with ``${*}`` and the like for the characters."""
    parts = re.split(r"(\$\{[*?$]\}|[*?])", pattern)
    wild = {"*": ".*", "?": "."}
    expression = "".join(wild.get(part) or re.escape(part[2] if part.startswith("${") else part) for part in parts)
    return re.fullmatch(expression, value, re.DOTALL) is not None


def may_read(document: dict[str, Any], arn: str) -> bool:
    reads = [s for s in document["Statement"] if s["Action"] == READ]
    return any(iam_matches(pattern, arn) for statement in reads for pattern in statement["Resource"])


def may_list(document: dict[str, Any], prefix: str) -> bool:
    lists = [s for s in document["Statement"] if s["Action"] == "s3:ListBucket"]
    return any(iam_matches(p, prefix) for s in lists for p in s["Condition"]["StringLike"]["s3:prefix"])


def test_one_condition_names_the_account_and_the_audience() -> None:  # UR-059
    (statement,) = trust()["Statement"]

    assert statement == {
        "Effect": "Allow",
        "Principal": {"Federated": OIDC_PROVIDER_ARN},
        "Action": "sts:AssumeRoleWithWebIdentity",
        "Condition": {
            "StringEquals": {
                f"{OIDC_ISSUER}:sub": "system:serviceaccount:ray-serving:gpu-serving-dev-worker",
                f"{OIDC_ISSUER}:aud": "sts.amazonaws.com",
            }
        },
    }, "with one key lost, every service account of the cluster could read the models"


def test_the_trust_text_repeats_no_key() -> None:  # UR-059
    def refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), f"of {keys} IAM keeps the last one only"
        return dict(pairs)

    parsed = json.loads(to_policy_text(trust()), object_pairs_hook=refuse_repeats)

    assert parsed == trust()


def test_the_issuer_may_come_with_its_scheme() -> None:
    assert trust(oidc_issuer=f"https://{OIDC_ISSUER}") == trust(), "IAM compares conditions without it"


def test_listing_names_the_bucket_and_reading_the_objects() -> None:  # UR-062 (a)
    assert policy("s3://models/llm/v1/")["Statement"] == [
        {
            "Sid": "ListModels1",
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": "arn:aws:s3:::models",
            "Condition": {"StringLike": {"s3:prefix": ["llm/v1/*"]}},
        },
        {
            "Sid": "ReadModels1",
            "Effect": "Allow",
            "Action": READ,
            "Resource": ["arn:aws:s3:::models/llm/v1/*"],
        },
    ], "the store reads a versioned bucket by version, which AWS allows by the second action only"


@pytest.mark.parametrize("uri", ["s3://models/llm/v1/", "s3://models/llm/v1"])
def test_a_prefix_never_opens_its_namesake(uri: str) -> None:  # UR-062 (a)
    document = policy(uri)

    assert may_read(document, "arn:aws:s3:::models/llm/v1/config.json")
    assert may_list(document, "llm/v1/")
    for other in ("llm/v10/config.json", "llm/config.json", "config.json"):
        assert not may_read(document, f"arn:aws:s3:::models/{other}")
    assert not may_list(document, "llm/v10/")
    assert not may_list(document, "")


def test_a_key_is_usable_through_s3_only_and_only_where_it_is_given() -> None:  # UR-062 (a)
    without, with_key = policy("s3://models/a/"), policy("s3://models/a/", keys=(KEY, KEY))

    assert "kms" not in to_policy_text(without)
    assert with_key["Statement"][-1] == {
        "Sid": "DecryptModels",
        "Effect": "Allow",
        "Action": "kms:Decrypt",
        "Resource": [KEY],
        "Condition": {"StringEquals": {"kms:ViaService": "s3.eu-west-1.amazonaws.com"}},
    }


def test_nothing_is_written_and_nothing_is_open_to_all() -> None:  # UR-062 (a)
    document = policy("s3://models/a/", "s3://models/b/", "s3://other/c/", keys=(KEY,))

    actions = {action for statement in document["Statement"] for action in as_list(statement["Action"])}
    assert actions == {"s3:ListBucket", *READ, "kms:Decrypt"}
    assert '"*"' not in to_policy_text(document)


def test_buckets_and_prefixes_are_grouped_and_sorted() -> None:
    uris = ("s3://zoo/b/", "s3://models/b/", "s3://models/a/", "s3://models/a/", "file:///models/local/")

    document = policy(*uris)

    assert document == policy(*reversed(uris)), "another order must not show up as a change of the policy"
    assert [statement["Sid"] for statement in document["Statement"]] == [
        "ListModels1",
        "ReadModels1",
        "ListModels2",
        "ReadModels2",
    ]
    assert document["Statement"][1]["Resource"] == ["arn:aws:s3:::models/a/*", "arn:aws:s3:::models/b/*"]


def test_models_on_disk_need_no_permission() -> None:
    assert model_read_document(model_uris=["file:///models/a/"], region="eu-west-1") is None


def test_a_wrong_uri_is_refused() -> None:
    with pytest.raises(BadUriError, match="starts with s3://"):
        model_read_document(model_uris=["gs://models/a/"], region="eu-west-1")


@given(st.text(st.sampled_from("ab/*?$.{}-"), min_size=1).filter(lambda p: p.strip("/") and ".." not in p.split("/")))
def test_a_prefix_is_taken_literally(prefix: str) -> None:
    """``*``, ``?`` and ``${`` are legal in keys; IAM would read them as wildcards and variables."""
    document = policy(f"s3://models/{prefix}")
    slashed = f"{prefix.rstrip('/')}/"

    assert may_read(document, f"arn:aws:s3:::models/{slashed}file")
    assert may_list(document, slashed)
    for index, character in enumerate(slashed):
        if character in "*?$":
            other = f"{slashed[:index]}x{slashed[index + 1 :]}"
            assert not may_read(document, f"arn:aws:s3:::models/{other}file"), f"{prefix!r} opens {other!r}"


@pytest.mark.parametrize(
    ("region", "partition", "domain"),
    [
        ("eu-west-1", "aws", "amazonaws.com"),
        ("cn-north-1", "aws-cn", "amazonaws.com.cn"),
        ("us-gov-west-1", "aws-us-gov", "amazonaws.com"),
    ],
)
def test_other_partitions_have_their_own_arns_and_services(region: str, partition: str, domain: str) -> None:
    document = policy("s3://models/a/", region=region, keys=(KEY,))

    assert partition_of(region) == partition
    assert document["Statement"][0]["Resource"] == f"arn:{partition}:s3:::models"
    via = document["Statement"][-1]["Condition"]["StringEquals"]["kms:ViaService"]
    assert via == f"s3.{region}.{domain}"
    assert ec2_trust_document(partition)["Statement"][0]["Principal"] == {"Service": f"ec2.{domain}"}


def test_golden_documents(snapshot: SnapshotAssertion) -> None:
    rendered = irsa_trust_document(
        oidc_provider_arn=PLACEHOLDERS.oidc_provider_arn,
        oidc_issuer=PLACEHOLDERS.oidc_issuer,
        namespace="ray-serving",
        service_account="gpu-serving-dev-worker",
    )
    assert json.dumps(rendered, indent=2) == snapshot(name="trust")
    several = policy("s3://models/llm/v1/", "s3://models/embedding/", "s3://other/a/", keys=(KEY,))
    assert json.dumps(several, indent=2) == snapshot(name="policy")
    assert json.dumps(ec2_trust_document("aws"), indent=2) == snapshot(name="nodes")
