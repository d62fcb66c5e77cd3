"""Nothing is read under another identity than the settings demand."""

from pathlib import Path

import pytest

from emulators import RecordingProxy, answer, times
from emulators.models import Bucket, linear_model
from ray_model_serving.store import ModelStore
from ray_model_serving.store.errors import CredentialsError, WrongIdentityError
from ray_model_serving.store.identity import is_same_identity

ROLE = "arn:aws:iam::123456789012:role/teams/ml/serving"
EMULATED = "arn:aws:iam::000000000000:root"


@pytest.mark.parametrize(
    ("caller", "same"),
    [
        ("arn:aws:sts::123456789012:assumed-role/serving/pod-1", True),
        (ROLE, True),
        ("arn:aws:sts::123456789012:assumed-role/serving-2/pod-1", False),
        ("arn:aws:sts::210987654321:assumed-role/serving/pod-1", False),
        ("arn:aws-cn:sts::123456789012:assumed-role/serving/pod-1", False),
        ("arn:aws:iam::123456789012:user/serving", False),
    ],
)
def test_an_assumed_role_is_the_role_whatever_its_path_and_session(caller: str, same: bool):
    assert is_same_identity(caller, ROLE) is same


def test_another_identity_is_refused_before_the_store_is_asked(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(linear_model())
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, expected_role_arn=ROLE)
    with pytest.raises(WrongIdentityError) as raised:
        store.ensure(uri)
    assert ROLE in raised.value.message
    assert EMULATED in raised.value.message
    assert [request.path for request in proxy.requests()] == ["/"], "STS and nothing else was asked"


def test_a_cached_snapshot_is_no_way_around_the_identity(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(linear_model())
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, expected_role_arn=EMULATED).ensure(uri) as snapshot:
        pin = snapshot.snapshot_id
    with pytest.raises(WrongIdentityError):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, expected_role_arn=ROLE).ensure(uri, snapshot_id=pin)


def test_no_credentials_is_its_own_error(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    uri = bucket.put(linear_model())
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(CredentialsError, match="credentials"):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)


def test_credentials_that_aws_does_not_take_are_not_called_a_missing_key(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())
    proxy.rule = times(1, answer(403, "InvalidAccessKeyId"))
    with pytest.raises(CredentialsError):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)
