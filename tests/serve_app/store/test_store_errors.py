"""Faults that say what to check, and those that pass: regions, keys, credentials, Retry-After, stalls, rates."""

import threading
import time
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from emulators import Answer, RecordingProxy, answer, times
from emulators.models import Bucket, large_model, linear_model, read_files
from emulators.proxy import Forward, Request, once_before, stalled, throttled
from ray_model_serving.store import ModelStore
from ray_model_serving.store.errors import (
    CredentialsError,
    KeyDeniedError,
    ObjectReplacedError,
    StoreUnavailableError,
    WrongRegionError,
)
from ray_model_serving.store.options import (
    LEAST_CONNECTIONS,
    MOST_CONNECTIONS,
    connections_for,
)
from ray_model_serving.store.retries import call, retry_after_s

_KMS = (
    "User: arn:aws:iam::1:role/r is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:eu-west-1:1:key/k"
)


def is_get(request: Request) -> bool:
    return request.is_object_get


@pytest.mark.parametrize(
    "fault",
    [
        answer(301, "PermanentRedirect", x_amz_bucket_region="eu-central-1"),
        answer(400, "AuthorizationHeaderMalformed", x_amz_bucket_region="eu-central-1"),
        answer(400, "IllegalLocationConstraintException", x_amz_bucket_region="eu-central-1"),
    ],
    ids=["301", "400", "opt-in"],
)
def test_a_bucket_in_another_region_is_named_with_its_region(fault, proxy: RecordingProxy, bucket: Bucket, tmp_path):
    uri = bucket.put(linear_model())
    proxy.rule = fault
    with pytest.raises(WrongRegionError) as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)
    assert raised.value.permanent
    assert "eu-central-1" in raised.value.message
    assert "eu-central-1" in raised.value.hint


def test_a_redirect_to_the_right_region_is_followed(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = linear_model()
    uri = bucket.put(files)  # in us-east-1
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "eu-central-1")
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        assert read_files(snapshot.path) == files
    signed_for = [request.headers["authorization"].split("/")[2] for request in proxy.requests()]
    assert signed_for[0] == "eu-central-1"
    assert set(signed_for[2:]) == {"us-east-1"}, "found once, and remembered for every range"


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "AccessDenied", _KMS),
        (400, "KMS.DisabledException", "arn:aws:kms:eu-west-1:1:key/k is disabled."),
        (400, "KMS.KMSInvalidStateException", "arn:aws:kms:eu-west-1:1:key/k is pending deletion."),
    ],
)
def test_a_key_that_can_not_be_used_is_not_taken_for_a_missing_object(
    status: int, code: str, message: str, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())
    proxy.rule = times(99, answer(status, code, message), only=is_get)
    with pytest.raises(KeyDeniedError) as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, connections=1).ensure(uri)
    assert raised.value.permanent
    assert "key/k" in raised.value.message
    assert "called as arn:aws:iam::000000000000:root" in raised.value.message
    assert len(proxy.object_gets()) == 1
    assert not list((tmp_path / "staging").iterdir())


def test_credentials_that_expire_in_the_middle_are_read_anew(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = large_model(20)
    uri = bucket.put(files)

    def expire(request: Request, forward: Forward) -> Answer | None:
        old = "Credential=emulator/" in request.headers.get("authorization", "")
        if is_get(request) and request.range_start > 0 and old:
            # Whoever mounts them has written new ones by now.
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
            return answer(400, "ExpiredToken")(request, forward)
        return forward()

    proxy.rule = expire
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, connections=2).ensure(uri) as snapshot:
        assert read_files(snapshot.path) == files
    assert any("Credential=renewed/" in get.headers["authorization"] for get in proxy.object_gets())


def test_credentials_that_stay_expired_are_permanent_after_one_renewal(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())
    proxy.rule = times(99, answer(400, "ExpiredToken"), only=is_get)
    with pytest.raises(CredentialsError) as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, connections=1).ensure(uri)
    assert raised.value.permanent
    assert len(proxy.object_gets()) == 2, "asked once, and once more with new credentials"


def test_what_the_store_asks_to_wait_is_waited(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-084
    uri = bucket.put(linear_model())
    times_of: list[float] = []

    def busy(request: Request, forward: Forward) -> Answer | None:
        times_of.append(time.monotonic())
        return answer(503, "SlowDown", retry_after="1")(request, forward)

    proxy.rule = times(1, busy, only=is_get)
    ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, connections=1).ensure(uri).close()
    assert time.monotonic() - times_of[0] >= 1


def client_error(retry_after: str) -> ClientError:
    metadata = {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": retry_after}}
    return ClientError({"Error": {"Code": "SlowDown"}, "ResponseMetadata": metadata}, "GetObject")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("text", "expected"), [("7", 7.0), ("", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_retry_after_is_read_in_seconds(text: str, expected: float | None):
    assert retry_after_s(client_error(text)) == expected


def test_a_store_that_asks_for_longer_than_the_deadline_does_not_hold_a_load_beyond_it():
    started = time.monotonic()

    def refuse() -> None:
        raise client_error("3600")

    with pytest.raises(ClientError):
        call(refuse, time.monotonic() + 0.3)
    assert time.monotonic() - started < 5


def test_slow_down_for_a_third_of_the_requests_still_ends_well(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-084
    files = large_model(20)
    uri = bucket.put(files)
    seen = [0]

    def sometimes(request: Request, forward: Forward) -> Answer | None:
        seen[0] += 1
        return answer(503, "SlowDown")(request, forward) if seen[0] % 3 == 0 else forward()

    proxy.rule = sometimes
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        assert read_files(snapshot.path) == files


def test_a_connection_that_only_trickles_is_given_up_and_the_rest_asked_for_anew(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-085: a byte now and then keeps every read time-out from passing.
    files = large_model(3)
    uri = bucket.put(files)
    slow = throttled(64 * 1024 / 0.4)
    proxy.rule = times(1, slow, only=lambda r: is_get(r) and r.path.endswith(".safetensors"))
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, stall_s=1.0, deadline_s=60)
    with store.ensure(uri) as snapshot:
        assert read_files(snapshot.path) == files
    assert proxy.gets_by_key()[f"/{bucket.name}/m/model.safetensors"] == 2


def test_a_body_that_stops_half_way_ends_well_before_the_deadline(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-085
    files = large_model(3)
    uri = bucket.put(files)
    over = threading.Event()
    proxy.rule = times(1, stalled(2 * 1024**2, over), only=lambda r: is_get(r) and r.path.endswith(".safetensors"))
    started = time.monotonic()
    try:
        with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, stall_s=1.0).ensure(uri) as snapshot:
            assert read_files(snapshot.path) == files
    finally:
        over.set()
    assert time.monotonic() - started < 15
    starts = [get.range_start for get in proxy.object_gets() if get.path.endswith(".safetensors")]
    assert starts == [0, 2 * 1024**2], "what had arrived is not asked for again"


def test_a_store_that_stalls_for_ever_ends_at_the_deadline(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-085
    uri = bucket.put(large_model(7))
    over = threading.Event()
    proxy.rule = times(99, stalled(1024**2, over), only=is_get)
    started = time.monotonic()
    try:
        with pytest.raises(StoreUnavailableError):
            ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, stall_s=30, deadline_s=2).ensure(uri)
    finally:
        over.set()
    assert time.monotonic() - started < 15, "a blocked read does not hold the error back"


def test_a_capped_download_is_no_faster_than_its_cap(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(large_model(4))
    started = time.monotonic()
    ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, max_bytes_per_s=4 * 1024**2).ensure(uri).close()
    # The first block of each connection is not waited for.
    assert time.monotonic() - started > 0.8


@pytest.mark.parametrize(
    ("gbps", "connections"),
    [(None, 16), (2.5, LEAST_CONNECTIONS), (10, 15), (25, 37), (100, MOST_CONNECTIONS), (400, MOST_CONNECTIONS)],
)
def test_connections_follow_the_network_of_the_node_within_bounds(gbps: float | None, connections: int):
    assert connections_for(gbps) == connections


@pytest.mark.parametrize("number", [1, 3])
def test_an_object_replaced_after_the_nth_range_is_never_mixed(
    number: int, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-081
    old = {"model.bin": b"\x01" * (30 * 1024**2)}
    new = {"model.bin": b"\x02" * (30 * 1024**2)}
    uri = bucket.put(old)
    proxy.rule = once_before(number, lambda: bucket.put(new), only=is_get)
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, connections=2)
    with store.ensure(uri, exclude=()) as snapshot:
        assert read_files(snapshot.path) == new
    assert not list((tmp_path / "staging").iterdir()), "nobody goes on with what is no longer there"


def test_an_object_that_is_gone_is_an_error_that_says_so(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-081
    uri = bucket.put(linear_model())
    proxy.rule = times(99, answer(404, "NoSuchKey"), only=is_get)
    with pytest.raises(ObjectReplacedError, match="went away"):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)


def test_names_that_differ_only_in_case_are_two_files(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    files = {**linear_model(), "Config.json": b'{"other": 1}'}
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(bucket.put(files)) as snapshot:
        assert read_files(snapshot.path) == files
