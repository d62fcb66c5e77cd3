import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_model_serving.contract.settings import Limits
from ray_model_serving.serving.exchange import (
    MAX_BATCHES_PER_REQUEST,
    RefusedError,
    is_under,
    json_response,
    parse_inputs,
    read_body,
    retry_after,
    subpath,
)

LIMITS = Limits(max_batch_size=2)


def accept(value: object) -> None:
    return None


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def refusal_of(body: bytes) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        parse_inputs(body, LIMITS, accept)
    return caught.value


def test_a_body_is_read_up_to_its_limit():
    assert asyncio.run(read_body(chunks(b"ab", b"c"), 3)) == b"abc"


def test_a_body_over_its_limit_is_refused_before_it_is_read_to_the_end():
    read: list[bytes] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            read.append(b"x" * 10)
            yield read[-1]

    with pytest.raises(RefusedError, match="larger than 25 bytes") as caught:
        asyncio.run(read_body(endless(), 25))
    assert (caught.value.status, caught.value.reason) == (413, "too_large")
    assert len(read) == 3, "what is refused must not fill the memory first"


@given(st.lists(st.one_of(st.text(), st.integers(), st.none(), st.booleans()), min_size=1, max_size=8))
def test_inputs_come_through_as_they_were_sent(inputs):
    assert parse_inputs(json.dumps({"inputs": inputs}).encode(), LIMITS, accept) == inputs


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe\xfa", b'{"inputs": [NaN]}', b'{"inputs": [-Infinity]}', b"[" * 100_000, b"1" * 5000],
)
def test_what_is_not_json_is_a_400(body):
    refusal = refusal_of(body)
    assert (refusal.status, refusal.kind, refusal.reason) == (400, "bad_json", "bad_request")
    assert 'send {"inputs": [...]}' in str(refusal)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[]", "the body is a list, must be an object"),
        (b'"x"', "the body is text, must be an object"),
        (b"null", "the body is null, must be an object"),
        (b"{}", "inputs is missing"),
        (b'{"inputs": null}', "inputs is null"),
        (b'{"inputs": "text"}', "inputs is text"),
        (b'{"inputs": []}', "inputs is an empty list"),
        (b'{"inputs": ["a"], "option": 1}', "unknown key 'option'"),
    ],
)
def test_another_shape_is_a_422_that_says_what_was_given(body, text):
    refusal = refusal_of(body)
    assert (refusal.status, refusal.kind) == (422, "bad_inputs")
    assert text in str(refusal)


def test_a_request_can_not_keep_the_model_to_itself():
    most = LIMITS.max_batch_size * MAX_BATCHES_PER_REQUEST
    body = json.dumps({"inputs": ["a"] * (most + 1)}).encode()
    assert f"inputs has {most + 1} items, at most {most}" in str(refusal_of(body))


def test_the_model_says_which_input_is_wrong():
    def problem_with(value: object) -> str | None:
        return None if isinstance(value, str) else "must be text"

    with pytest.raises(RefusedError, match=r"inputs\[1\]: must be text"):
        parse_inputs(b'{"inputs": ["a", 7]}', LIMITS, problem_with)


@pytest.mark.parametrize(
    ("path", "route", "under", "rest"),
    [
        ("/embed", "/embed", True, ""),
        ("/embed/", "/embed", True, ""),
        ("/embed/status", "/embed", True, "status"),
        ("/embed2", "/embed", False, None),
        ("/", "/", True, ""),
        ("/status", "/", True, "status"),
        ("/a/b/status", "/a/b/", True, "status"),
    ],
)
def test_a_route_ends_at_a_slash(path, route, under, rest):
    assert is_under(path, route) is under
    if under:
        assert subpath(path, route) == rest


def test_retry_after_is_whole_seconds_and_never_zero():
    assert [retry_after(seconds)["retry-after"] for seconds in (0.0, 1.2, 30.0)] == ["1", "2", "30"]


def test_an_answer_that_json_does_not_have_is_an_error_here_and_not_at_the_client():
    with pytest.raises(ValueError, match="JSON"):
        json_response(200, {"outputs": [float("nan")]})
