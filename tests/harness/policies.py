"""Rules over every IAM policy document that a record carries, whatever property it is in."""

from collections.abc import Iterator
from typing import Any

from harness.graph import Record
from harness.texts import walk


def iam_violations(record: Record, allow_star: frozenset[str]) -> Iterator[str]:
    """Statements that allow every action of a service, or every resource without being in ``allow_star`` (Sids)."""
    for path, document in walk(dict(record.inputs)):
        if not isinstance(document, dict) or not path.endswith("<json>") or "Statement" not in document:
            continue
        for statement in as_list(document["Statement"]):
            if statement.get("Effect") != "Allow":
                continue
            where = f"{record} {path} {statement.get('Sid', 'statement without Sid')}"
            yield from _too_wide(statement, where, allow_star)


def _too_wide(statement: dict[str, Any], where: str, allow_star: frozenset[str]) -> Iterator[str]:
    for action in as_list(statement.get("Action")):
        if action == "*" or action.endswith(":*"):
            yield f"{where}: action {action!r}"
    if "NotAction" in statement or "NotResource" in statement:
        yield f"{where}: everything but a list is allowed"
    if "*" in as_list(statement.get("Resource")) and statement.get("Sid") not in allow_star:
        yield f"{where}: resource '*'"
    for principal in as_list(statement.get("Principal")):
        values = (
            [principal] if isinstance(principal, str) else [v for item in principal.values() for v in as_list(item)]
        )
        if "*" in values:
            yield f"{where}: principal '*'"


def as_list(value: Any) -> list[Any]:
    """IAM lets one item stand for a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
