"""The page on errors has every kind that the code can raise, and says of each whether it is permanent."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "serve_app" / "ray_model_serving"
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
# Set for each error, and not for its class.
_BY_CAUSE = {"load_failed", "some_failed", "interrupted", "load_timeout"}


def kinds() -> dict[str, bool]:
    """Every ``kind = "..."`` of a class, and whether the class is permanent."""
    found: dict[str, bool] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                values = {
                    target.id: item.value.value
                    for item in node.body
                    if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant)
                    for target in item.targets
                    if isinstance(target, ast.Name)
                }
                if isinstance(kind := values.get("kind"), str):
                    found[kind] = bool(values.get("permanent", True))
    return found


def rows() -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", PAGE, re.MULTILINE))


def test_every_kind_of_error_is_on_the_page_once():
    found = kinds()
    assert len(found) > 30
    assert set(found) <= set(rows()), "add a row to docs/errors.md: what it means and what to do"


def test_the_page_says_of_each_whether_it_is_permanent():
    said, found = rows(), kinds()
    wrong = {k: said[k] for k, permanent in found.items() if k not in _BY_CAUSE and (said[k] == "yes") != permanent}
    assert not wrong


def test_exit_codes_and_what_goes_with_them_are_on_the_page():
    assert all(f"| {code} |" in PAGE for code in (0, 1, 2, 130, 143))
    assert "--cache-budget-gib" in PAGE
    assert "RAY_MODEL_DEBUG" in PAGE
