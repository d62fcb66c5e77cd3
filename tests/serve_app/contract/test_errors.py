"""Typed errors: one shape, whole across process boundaries."""

import inspect
import pickle
import re

import pytest

import ray_model_serving.loading.errors as loading_errors
import ray_model_serving.store.errors as store_errors
from ray_model_serving.contract.errors import ModelServingError

ERRORS = [
    found
    for module in (store_errors, loading_errors)
    for _, found in inspect.getmembers(module, inspect.isclass)
    if issubclass(found, ModelServingError) and found is not ModelServingError
]


@pytest.mark.parametrize("error_class", ERRORS)
def test_an_error_keeps_everything_across_a_process_boundary(error_class: type[ModelServingError]):
    copy = pickle.loads(pickle.dumps(error_class("what happened", hint="what to do")))
    assert type(copy) is error_class
    assert copy.to_json() == {
        "error": {
            "kind": error_class.kind,
            "message": "what happened",
            "permanent": error_class.permanent,
            "hint": "what to do",
        }
    }
    assert str(copy) == "what happened (what to do)"


def test_kinds_are_stable_words_and_each_names_one_error():
    kinds = [error_class.kind for error_class in ERRORS]
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", kind) for kind in kinds)
    assert len(set(kinds)) == len(kinds)
    assert "error" not in kinds, "every error says what kind it is"


def test_only_what_a_retry_can_mend_is_not_permanent():
    assert {error_class.kind for error_class in ERRORS if not error_class.permanent} == {
        "cache_changed",
        "digest_mismatch",
        "io_failed",
        "lock_timeout",
        "object_replaced",
        "store_unavailable",
    }
