"""The page of settings says what the code reads; ``make golden`` writes it anew."""

import dataclasses
from pathlib import Path

import pytest

from eks_gpu_serving.settings import ApplicationSettings, StackAutoscaling, StackModel, StackSettings
from harness.settings_page import settings_page
from ray_model_serving.contract.settings import Limits, Variant

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    page = settings_page()
    if request.config.getoption("update_snapshots"):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page, "run make golden and read the diff"


@pytest.mark.parametrize(
    "part",
    [StackSettings, ApplicationSettings, StackModel, Variant, Limits, StackAutoscaling],
    ids=lambda p: p.__name__,
)
def test_every_key_is_on_the_page_with_its_description(part: type) -> None:
    lines = settings_page().splitlines()
    for field in dataclasses.fields(part):
        ends = f"| {field.metadata['doc'].replace('<', '&lt;')} |"
        assert any(line.startswith(f"| `{field.name}` | ") and line.endswith(ends) for line in lines), field.name


@pytest.mark.parametrize(
    "row",
    [
        "| `region` | text | required | matches ",
        "| `num_gpus` | number | 1 | at least 0, at most 16, multiple of 0.0001 | ",
        "| `upgrade` | `new_cluster` or `none` | `new_cluster` |  | ",
        "| `variants` | list of mapping | none |  | ",
        "| `rate_cap_mib_per_s` | number | none | at least 1, at most 65536 | ",
        "| `keep_converted` | true or false | true |  | ",
        "## `models[].variants[]`",
    ],
)
def test_a_row_has_type_default_and_rule(row: str) -> None:
    assert any(line.startswith(row) for line in settings_page().splitlines())
