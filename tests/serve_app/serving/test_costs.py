from typing import Any

import pytest

from ray_model_serving.contract.settings import Limits
from ray_model_serving.serving.costs import BadCostError, costs_of
from ray_model_serving.serving.exchange import RefusedError


def test_costs_are_what_the_class_counts():
    assert costs_of(["a", "bbb"], Limits(max_batch_cost=3), len) == [1, 3]


def test_without_a_bound_the_class_is_not_asked():
    def cost(value: Any) -> int:
        raise AssertionError("asked")

    assert costs_of(["a", "b"], Limits(), cost) == [1, 1]


def test_an_input_that_alone_costs_too_much_is_refused_with_both_numbers():
    with pytest.raises(RefusedError) as caught:
        costs_of(["a", "bbbb"], Limits(max_batch_cost=3), len)
    assert (caught.value.status, caught.value.kind, caught.value.reason) == (413, "input_too_costly", "too_large")
    assert "inputs[1] costs 4" in caught.value.message
    assert "max_batch_cost 3" in caught.value.message


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None, "3"])
def test_a_cost_that_is_no_count_is_an_error_of_the_model(bad: Any):
    with pytest.raises(BadCostError, match=r"for inputs\[0\], must be an int of at least 1"):
        costs_of(["a"], Limits(max_batch_cost=3), lambda _: bad)


def test_a_cost_that_raises_names_the_input_and_the_cause():
    def cost(value: Any) -> int:
        return {"a": 1}[value]

    with pytest.raises(BadCostError, match=r"inputs\[1\]: KeyError: 'b'"):
        costs_of(["a", "b"], Limits(max_batch_cost=3), cost)
