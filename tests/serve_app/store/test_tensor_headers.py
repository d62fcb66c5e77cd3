"""Headers of safetensors files are read as the format's own library writes them, and nothing else is taken for one."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from ray_model_serving.store.errors import InvalidModelFileError
from ray_model_serving.store.tensor_headers import parse_header

_DTYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "U8": np.uint8, "BOOL": np.bool_}
_SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.tuples(st.sampled_from(sorted(_DTYPES)), _SHAPES), max_size=5)
)
def test_what_safetensors_writes_is_read_back(tensors: dict[str, tuple[str, tuple[int, ...]]]):
    tensors.pop("__metadata__", None)
    content = save({name: np.zeros(shape, dtype=_DTYPES[kind]) for name, (kind, shape) in tensors.items()})
    read = parse_header(content, len(content))
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in read} == tensors


@given(st.binary(max_size=200))
def test_any_other_bytes_are_an_error_and_never_a_crash(content: bytes):
    if len(content) == 10 and content[8:] == b"{}":
        return
    with pytest.raises(InvalidModelFileError):
        parse_header(content, len(content))


def header(entries: object, data_bytes: int) -> tuple[bytes, int]:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text, 8 + len(text) + data_bytes


@pytest.mark.parametrize(
    ("entries", "data_bytes", "problem"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, 12, "hole"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, 4, "wrong size"),
        ({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, 4, "unknown type"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, 4, "-1 is no extent"),
        ({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, 4, "1.0 is no extent"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]}}, 4, "'4' is no extent or offset"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, 4, "True is no extent"),
        ({"__metadata__": {"format": 1}}, 0, "__metadata__"),
        ({"__metadata__": ["pt"]}, 0, "not safetensors"),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, 3, "it is cut"),
    ],
)
def test_headers_that_the_format_forbids_are_refused(entries: object, data_bytes: int, problem: str):
    with pytest.raises(InvalidModelFileError, match=problem):
        parse_header(*header(entries, data_bytes))


@pytest.mark.parametrize("header", [b"[" * 100_000, b'{"a":' * 100_000])
def test_a_header_that_no_parser_can_take_is_refused(header: bytes):
    content = len(header).to_bytes(8, "little") + header
    with pytest.raises(InvalidModelFileError):
        parse_header(content, len(content))
