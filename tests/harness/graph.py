"""What one mock run registered, as plain values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pulumi.runtime import rpc

UNKNOWN = rpc.UNKNOWN
"""Stands in for a value that a preview can't know yet."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One resource, component or read, as the program handed it to the engine."""

    type: str
    name: str
    urn: str
    parent: str
    """URN of the parent; of the stack where the program gave none."""
    custom: bool
    """False for components, also for remote ones such as ``eks:index:Cluster``."""
    inputs: Mapping[str, Any]
    """camelCase keys; secrets are unwrapped, see ``secret_paths``."""
    secret_paths: frozenset[str]
    """Dotted paths in ``inputs`` that were marked secret."""
    protect: bool
    retain_on_delete: bool
    dependencies: tuple[str, ...]
    ignore_changes: tuple[str, ...]
    provider: str
    """``urn::id`` of an explicit provider, empty for the default one."""
    providers: Mapping[str, str]
    aliases: tuple[str, ...]
    timeouts: Mapping[str, str]
    outputs: Mapping[str, Any] | None = None
    """What a component passed to ``register_outputs``; None where it never called it."""
    secret_outputs: frozenset[str] = frozenset()
    """Those of ``outputs`` that were marked secret."""

    def __str__(self) -> str:
        return f"{self.type} {self.name!r}"


@dataclass(frozen=True, kw_only=True)
class Invoke:
    """One call of a provider function, such as ``aws:eks/getCluster:getCluster``."""

    token: str
    args: Mapping[str, Any]
    provider: str


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Everything of one run, in the order in which it was registered. Iterates over its records."""

    records: tuple[Record, ...]
    invokes: tuple[Invoke, ...] = ()
    exports: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Stack outputs."""
    preview: bool = False

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def of_type(self, type_: str) -> list[Record]:
        """Every record of a type token."""
        return [record for record in self.records if record.type == type_]

    def one(self, type_: str, name: str | None = None) -> Record:
        """The only record of a type (and name). Raises AssertionError with what there is."""
        found = [record for record in self.of_type(type_) if name in (None, record.name)]
        have = ", ".join(str(record) for record in self.records) or "nothing"
        assert len(found) == 1, f"expected one {type_} {name or ''}, found {len(found)} among: {have}"
        return found[0]

    def by_urn(self, urn: str) -> Record | None:
        """The record with this URN."""
        return next((record for record in self.records if record.urn == urn), None)

    def ancestors(self, record: Record) -> Iterator[Record]:
        """Parent, grandparent and so on, nearest first."""
        parent = self.by_urn(record.parent)
        while parent is not None:
            yield parent
            parent = self.by_urn(parent.parent)

    def names(self) -> list[tuple[str, str]]:
        """Sorted (type, name) pairs: what a golden list of a component holds."""
        return sorted((record.type, record.name) for record in self.records)
