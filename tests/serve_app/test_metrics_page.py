"""The page of metrics says what the code declares; ``make golden`` writes it anew."""

import ast
import re
from pathlib import Path

import pytest

from harness.metrics_page import metrics_page
from ray_model_serving.contract import metrics
from ray_model_serving.contract.metrics import Metric, MetricType

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "metrics.md"


def test_the_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    page = metrics_page()
    if request.config.getoption("update_snapshots"):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page, "run make golden and read the diff"


@pytest.mark.parametrize("metric", metrics.ALL, ids=lambda metric: metric.name)
def test_a_metric_is_declared_as_prometheus_names_it(metric: Metric) -> None:
    assert re.fullmatch(r"model_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.type is MetricType.COUNTER)
    assert bool(metric.label) == bool(metric.label_values), "a label without a closed set of values grows without bound"
    assert len(set(metric.label_values)) == len(metric.label_values)
    assert metric.advice


def words(name: str) -> set[str]:
    """The values that ``serving/`` gives to ``name`` in calls and dictionaries, where they are written out."""
    found: set[str] = set()
    for path in (ROOT / "serve_app" / "ray_model_serving" / "serving").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            pairs: list[tuple[object, ast.expr]] = []
            if isinstance(node, ast.Call):
                pairs += [(keyword.arg, keyword.value) for keyword in node.keywords]
            if isinstance(node, ast.Dict):
                pairs += [
                    (key.value, value)
                    for key, value in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant)
                ]
            found |= {
                v.value for k, v in pairs if k == name and isinstance(v, ast.Constant) and isinstance(v.value, str)
            }
    return found


def test_every_reason_that_is_given_is_declared_and_every_declared_one_is_given() -> None:
    given = words("reason") | {"bad_request"}  # what a refusal has that names none
    assert given == set(metrics.REASONS)


def test_every_event_of_the_log_is_on_the_page() -> None:
    events = words("event")
    assert len(events) >= 4
    missing = {event for event in events if f"`{event}`" not in metrics_page()}
    assert not missing
