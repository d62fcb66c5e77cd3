"""Model URIs."""

import pickle
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_model_serving.contract.uris import BadUriError, FileUri, S3Uri, parse_model_uri


@pytest.mark.parametrize("text", ["s3://models/llm/v1", "s3://models/llm/v1/", "s3://models/llm/v1//"])
def test_a_prefix_ends_with_one_slash_so_that_v1_never_reaches_v10(text: str):
    # UR-062
    assert parse_model_uri(text) == S3Uri(bucket="models", prefix="llm/v1/")


def test_a_file_uri_is_an_absolute_directory():
    assert parse_model_uri("file:///models/minilm") == FileUri(path="/models/minilm")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "starts with s3:// or file://"),
        ("models/llm", "starts with s3:// or file://"),
        ("https://models.s3.amazonaws.com/llm", "starts with s3:// or file://"),
        ("S3://models/llm", "starts with s3:// or file://"),
        ("file://models/llm", "three slashes"),
        ("s3://models", "prefix of its own"),
        ("s3://models/", "prefix of its own"),
        ("s3://Models/llm", "not a bucket name"),
        ("s3:///llm", "not a bucket name"),
        ("s3://models/../other", "no '..' segment"),
        ("file:///models/../etc", "no '..' segment"),
        ("s3://models/a\0b", "do not print"),
        ("s3://models/a\nb/", "line breaks"),
        ("s3://models/a\x7f/", "do not print"),
        ("file:///models/\ud800/", "do not print"),
        ("file:///", "not the root"),
        ("file:////", "not the root"),
        ("a, s3://x", "starts with s3:// or file://"),
    ],
)
def test_anything_else_is_refused_with_what_was_given_and_the_rule(text: str, rule: str):
    with pytest.raises(BadUriError) as raised:
        parse_model_uri(text)
    assert repr(text) in raised.value.message
    assert rule in raised.value.rule
    assert raised.value.kind == "bad_uri"
    assert pickle.loads(pickle.dumps(raised.value)).rule == raised.value.rule


_BUCKETS = st.from_regex(r"[a-z0-9][a-z0-9.-]{1,20}[a-z0-9]", fullmatch=True)
_PREFIXES = st.from_regex(r"[\w-]+(/[\w-]+)*", fullmatch=True)


@given(_BUCKETS, _PREFIXES)
def test_the_text_of_a_uri_reads_back_as_the_same_uri(bucket: str, prefix: str):
    uri = S3Uri(bucket=bucket, prefix=f"{prefix}/")
    assert parse_model_uri(str(uri)) == uri


@given(st.text(max_size=30))
def test_any_text_is_a_uri_or_a_bad_uri_error(text: str):
    for candidate in (text, f"s3://{text}", f"file://{text}"):
        with suppress(BadUriError):
            assert str(parse_model_uri(candidate)).startswith(("s3://", "file://"))
