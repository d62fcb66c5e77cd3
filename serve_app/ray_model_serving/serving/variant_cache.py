"""Which variants a replica has in memory: least recently used by bytes. Pure bookkeeping."""

from collections import OrderedDict
from dataclasses import dataclass


class TooLargeError(ValueError):
    """A variant that is larger than everything that variants may take together."""


@dataclass
class _Entry:
    bytes: int = 0
    """Promised to it, from before its load until its memory is free again."""
    users: int = 0
    is_loading: bool = False
    is_leaving: bool = False
    """Takes no new users, so that another gets its bytes."""


class VariantCache:
    """Bytes and users of each variant, the least recently used first. Belongs to one event loop.

    The bytes of all never exceed ``budget_bytes``, and one that is loading or has users is never among :meth:`idle`.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    @property
    def taken_bytes(self) -> int:
        return sum(entry.bytes for entry in self._entries.values())

    def bytes_of(self, name: str) -> int:
        entry = self._entries.get(name)
        return entry.bytes if entry else 0

    def users_of(self, name: str) -> int:
        entry = self._entries.get(name)
        return entry.users if entry else 0

    def is_leaving(self, name: str) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.is_leaving

    def pin(self, name: str) -> None:
        """A request begins to use it. Not for one that :meth:`is_leaving`."""
        entry = self._entries.setdefault(name, _Entry())
        assert not entry.is_leaving
        entry.users += 1
        self._entries.move_to_end(name)

    def unpin(self, name: str) -> None:
        """The request is over."""
        self._entries[name].users -= 1

    def reserve(self, name: str, need_bytes: int) -> bool:
        """Promise the bytes of a load that begins now; False where they are not free yet.

        Then those that have to go, the least recently used first and those without users before the others, take no new
        users. Raises :class:`TooLargeError` where it can never have room.
        """
        if need_bytes > self.budget_bytes:
            raise TooLargeError(f"{need_bytes} bytes are over the {self.budget_bytes} that variants may take together")
        missing = self.taken_bytes - self.bytes_of(name) + need_bytes - self.budget_bytes
        if missing <= 0:
            entry = self._entries.setdefault(name, _Entry())
            entry.bytes, entry.is_loading = need_bytes, True
            return True
        missing -= sum(entry.bytes for entry in self._entries.values() if entry.is_leaving)
        staying = [entry for entry in self._entries.values() if entry.bytes and not entry.is_leaving]
        for entry in sorted((one for one in staying if not one.is_loading), key=lambda one: one.users > 0):
            if missing <= 0:
                break
            entry.is_leaving = True
            missing -= entry.bytes
        return False

    def loaded(self, name: str) -> None:
        """Its load is over and went well."""
        self._entries[name].is_loading = False

    def give_back(self, name: str) -> None:
        """Its load is over and failed; nothing of it is in memory."""
        if entry := self._entries.get(name):
            entry.bytes, entry.is_loading = 0, False

    def idle(self) -> list[str]:
        """Those that have to go and have no users any more: the caller unloads them, then calls :meth:`remove`."""
        return [name for name, entry in self._entries.items() if entry.is_leaving and entry.users == 0]

    def remove(self, name: str) -> None:
        """Its memory is free; the next request begins from nothing."""
        del self._entries[name]

    def names_in_use(self) -> list[str]:
        """Those that have bytes, the least recently used first."""
        return [name for name, entry in self._entries.items() if entry.bytes]
