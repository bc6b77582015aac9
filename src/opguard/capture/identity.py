"""A dictionary of weakly held objects by identity: modules need not be hashable."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ByIdentity(Generic[T]):
    """Values by object; an entry goes when its object does."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], T]] = {}

    def get(self, thing: Any) -> T | None:
        """The object's value, None without one."""
        entry = self._entries.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def set(self, thing: Any, value: T) -> None:
        """Give the object a value."""
        entries, key = self._entries, id(thing)

        def gone(reference: weakref.ref[Any]) -> None:
            entry = entries.get(key)
            if entry is not None and entry[0] is reference:
                del entries[key]

        entries[key] = (weakref.ref(thing, gone), value)
