"""One holder at a time, over a key-value store that only knows "add where absent"; a holder that dies loses it."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class KeyValue(Protocol):
    """What is needed of Ray's key-value store."""

    def add(self, key: str, value: str) -> bool:
        """Whether the key was new; a key that is there keeps its value."""
        ...

    def put(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> str | None: ...
    def keys(self, prefix: str) -> Sequence[str]: ...
    def delete(self, key: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class _Grant:
    owner: str
    until: float


class Lease:
    """Each grant is a key of its own with the next number, so that whoever adds it first has it.

    ``lasts_s`` bounds it by the wall clock: nodes whose clocks differ by more could hold it both.
    """

    def __init__(
        self, store: KeyValue, name: str, *, owner: str, lasts_s: float, now: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._prefix = f"{name}/"
        self._owner = owner
        self._lasts_s = lasts_s
        self._now = now

    def take(self) -> bool:
        """Whether this owner has it now; it keeps one that it has."""
        latest = self._latest()
        grant = self._grant(latest)
        if grant and grant.until > self._now():
            return grant.owner == self._owner
        mine = latest + 1
        if not self._store.add(self._key(mine), self._value(self._now() + self._lasts_s)):
            return False
        if self._latest() != mine:  # this number had been cleaned up under a newer one
            self._store.delete(self._key(mine))
            return False
        for number in self._numbers():
            if number < mine:
                self._store.delete(self._key(number))
        return True

    def give_back(self) -> None:
        """No error where somebody else has it."""
        latest = self._latest()
        grant = self._grant(latest)
        if grant and grant.owner == self._owner:
            self._store.put(self._key(latest), self._value(0))

    def _latest(self) -> int:
        return max(self._numbers(), default=0)

    def _numbers(self) -> list[int]:
        found = [key.removeprefix(self._prefix) for key in self._store.keys(self._prefix)]
        return [int(text) for text in found if text.isdecimal()]

    def _grant(self, number: int) -> _Grant | None:
        text = self._store.get(self._key(number)) if number else None
        try:
            fields = json.loads(text) if text else {}
            return _Grant(owner=str(fields["owner"]), until=float(fields["until"]))
        except (ValueError, KeyError, TypeError):
            return None

    def _key(self, number: int) -> str:
        return f"{self._prefix}{number}"

    def _value(self, until: float) -> str:
        return json.dumps({"owner": self._owner, "until": until})
