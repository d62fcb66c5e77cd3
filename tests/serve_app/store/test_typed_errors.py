"""Whatever is wrong with a configuration, a store's answers or a disk ends as one typed error."""

import logging
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import stamina
from botocore.exceptions import HTTPClientError

from emulators import Answer, RecordingProxy, answer, times
from emulators.models import Bucket, linear_model, read_files, write_files
from emulators.proxy import Forward, Request, Rule
from ray_model_serving.store import ModelStore
from ray_model_serving.store.errors import (
    AwsConfigurationError,
    CacheNotWritableError,
    CredentialsError,
    IoFailedError,
    NoObjectsError,
    StoreRefusedError,
    WrongRegionError,
)
from ray_model_serving.store.retries import is_transient

URI = "s3://models/m/"


@pytest.mark.parametrize("url", ["junk", "http://", "http://[", "ftp//x"])
@pytest.mark.parametrize("by_environment", [True, False])
def test_an_endpoint_that_is_no_url_is_named(
    url: str, by_environment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if by_environment:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(AwsConfigurationError) as raised:
        ModelStore(tmp_path, endpoint_url=None if by_environment else url, deadline_s=5).resolve(URI)
    assert url in raised.value.message
    assert "AWS_ENDPOINT_URL" in raised.value.hint


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("AWS_PROFILE", "no-such-profile", AwsConfigurationError),
        ("AWS_REGION", "not a region", AwsConfigurationError),
        ("AWS_DEFAULT_REGION", "not a region", AwsConfigurationError),
        ("AWS_SECRET_ACCESS_KEY", None, CredentialsError),
    ],
)
def test_a_configuration_that_no_client_can_be_made_of_is_typed(
    name: str, value: str | None, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for region in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(region, raising=False)
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(error):
        ModelStore(tmp_path, endpoint_url="http://127.0.0.1:9", deadline_s=2).resolve(URI)


def test_a_configuration_file_that_is_none_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "config").write_text("[default\nregion")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(AwsConfigurationError, match="config"):
        ModelStore(tmp_path).resolve(URI)


@pytest.mark.parametrize(
    "url", ["http://user:secret@127.0.0.1:9", "https://secret@host", "http://a:secret@[", "x//u:secret@"]
)
@pytest.mark.parametrize("by_environment", [True, False])
def test_a_password_in_the_endpoint_is_refused_and_printed_nowhere(
    url: str, by_environment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    if by_environment:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with caplog.at_level(logging.INFO), pytest.raises(AwsConfigurationError) as raised:
        ModelStore(tmp_path, endpoint_url=None if by_environment else url, deadline_s=2).resolve(URI)
    assert "secret" not in f"{raised.value}{caplog.text}"
    assert raised.value.__cause__ is None, "a traceback would show the original text"


def test_a_redirect_that_leads_nowhere_is_a_wrong_region_and_no_endless_loop(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())
    proxy.rule = answer(301, "PermanentRedirect")
    with pytest.raises(WrongRegionError, match="one it does not name"):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).resolve(uri)
    assert len(proxy.requests()) <= 4


def page(text: str) -> Rule:
    return lambda request, forward: Answer(status=200, headers={"content-type": "text/html"}, body=text.encode())


_CUT = "<ListBucketResult><Name>b</Name><IsTruncated>true</IsTruncated></ListBucketResult>"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<html><body>Sign in</body></html>", "does not answer as S3"),
        ("", "does not answer as S3"),
        ('{"message": "sign in"}', "does not answer as S3"),
        ("<?xml version='1.0'?><html>", "does not answer as S3"),
        (_CUT, "does not say how to go on"),
    ],
    ids=["page", "nothing", "JSON", "cut page", "cut listing"],
)
def test_a_listing_that_is_none_is_refused_at_once(
    text: str, said: str, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())
    proxy.rule = page(text)
    with pytest.raises(StoreRefusedError, match=said) as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).resolve(uri)
    assert raised.value.permanent
    assert len(proxy.requests()) == 1
    if said == "does not answer as S3":
        assert proxy.endpoint_url in raised.value.message


@pytest.mark.parametrize("length", [3, 12, 30, 60, 200])
def test_a_listing_that_broke_off_is_asked_for_again(
    length: int, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())

    def cut(request: Request, forward: Forward) -> Answer:
        whole = forward()
        return replace(whole, body=whole.body[:length]) if len(proxy.requests()) == 1 else whole

    proxy.rule = cut
    assert ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).resolve(uri).files


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_to_a_login_page_is_refused_at_once(
    status: int, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())
    moved = Answer(status=status, headers={"location": "http://127.0.0.1:9/login"}, body=b"<html>Moved</html>")
    proxy.rule = lambda request, forward: moved
    with pytest.raises(StoreRefusedError) as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).resolve(uri)
    assert raised.value.permanent
    assert len(proxy.requests()) <= 2


@pytest.mark.parametrize(("cause", "again"), [(OSError("reset"), True), (TypeError("bytes"), False)])
def test_a_fault_inside_the_http_client_is_not_taken_for_the_network(cause: Exception, again: bool):
    assert is_transient(HTTPClientError(error=cause)) is again, "an answer that it can't take apart stays as it is"


@pytest.mark.parametrize("content", [b"<html>Sign in</html>", b'{"message": "sign in"}', b""])
def test_a_head_that_a_portal_answers_is_refused_at_once(
    content: bytes, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put({"config.json": b"{}"})
    portal = Answer(status=200, headers={"content-type": "text/html", "content-length": str(len(content))}, body=b"")
    proxy.rule = lambda request, forward: portal if request.method == "HEAD" else forward()
    with pytest.raises(StoreRefusedError, match="no ETag") as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).resolve(uri)
    assert raised.value.permanent
    assert len(proxy.requests()) == 2, "one LIST and one HEAD"


def test_a_head_without_an_etag_is_refused(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(linear_model())

    def strip(request: Request, forward: Forward) -> Answer:
        got = forward()
        kept = {name: value for name, value in got.headers.items() if name.lower() != "etag"}
        return Answer(status=got.status, headers=kept, body=got.body) if request.method == "HEAD" else got

    proxy.rule = strip
    with pytest.raises(StoreRefusedError, match="no ETag"):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).resolve(uri)


def test_a_range_of_another_length_is_refused_without_retries(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put({"config.json": b"{}"})

    def shorter(request: Request, forward: Forward) -> Answer:
        got = forward()
        return (
            Answer(status=206, headers=got.headers | {"content-length": "1"}, body=b"{")
            if request.is_object_get
            else got
        )

    proxy.rule = shorter
    with pytest.raises(StoreRefusedError, match="announces 1"):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)
    assert len(proxy.object_gets()) == 1


def test_a_prefix_that_is_one_object_is_told_from_an_empty_one(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(linear_model())
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    with pytest.raises(NoObjectsError, match="this is an object") as raised:
        store.resolve(f"{uri}model.safetensors/")
    assert "folder" in raised.value.hint
    with pytest.raises(NoObjectsError, match="no objects to fetch"):
        store.resolve(f"{uri}absent/")


def test_a_model_may_have_more_files_than_the_process_may_open(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-083
    files = {f"part-{number:03}.json": b"{}" for number in range(150)}
    uri = bucket.put(files)
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, connections=2)
    store.resolve(uri)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, before[1]))
    try:
        with store.ensure(uri) as snapshot:
            assert read_files(snapshot.path) == files
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_file_of_a_directory_that_can_not_be_read_is_named(tmp_path: Path, as_user_without_rights):
    directory = write_files(tmp_path / "model", linear_model())
    (directory / "config.json").chmod(0)
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        parent.chmod(parent.stat().st_mode | 0o11)
    with as_user_without_rights(directory), pytest.raises(CacheNotWritableError, match=r"config\.json"):
        ModelStore(tmp_path / "cache").ensure(f"file://{directory}")


def test_a_disk_that_fails_while_bytes_arrive_is_typed(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    uri = bucket.put(linear_model())

    def fail(descriptor: int, block: bytes, offset: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(IoFailedError, match="Input/output error"):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)


def test_a_retry_is_one_readable_line(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    uri = bucket.put(linear_model())
    proxy.rule = times(1, answer(503, "SlowDown"))
    before = stamina.instrumentation.get_on_retry_hooks()
    try:
        with caplog.at_level(logging.INFO):
            ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).resolve(uri)
    finally:
        stamina.instrumentation.set_on_retry_hooks(before)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "attempt 1 of 8" in line
    assert "SlowDown" in line


@pytest.mark.parametrize("name", ["stall_s", "max_bytes_per_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_that_no_download_can_keep_is_refused(name: str, value: float, tmp_path: Path):
    with pytest.raises(ValueError, match=name):
        ModelStore(tmp_path, **{name: value})  # pyright: ignore[reportArgumentType]  (one of two keywords)
