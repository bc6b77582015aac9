"""String tables of one rank: each kind is numbered from 0 in order of first use."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Final

from opguard.model import STRING_KINDS, StringKind

OPEN_KINDS: Final = frozenset({"arguments", "shape", "strides"})
"""A program may make ever more of them: a learning rate that changes each step, views at ever
other places."""
MOST_CHARACTERS: Final = 8 << 20
"""Of an open kind, and ``_COST`` for each string, after which those met so far are forgotten: one
that comes again is stored again, under another id."""
_COST: Final = 128
"""What remembering a string takes beside its characters, about."""


@dataclass
class _Table:
    ids: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    first: int = 0
    """Id of ``texts[0]``."""
    characters: int = 0


class Interner:
    """Hands out ids; what is new since the last :meth:`drain` goes to the store with a chunk."""

    def __init__(self) -> None:
        # Re-entrant: a finalizer or signal handler may call an operator in the middle of it.
        self._lock = threading.RLock()
        self._tables = {kind: _Table() for kind in STRING_KINDS}
        self._new: list[tuple[StringKind, int, str]] = []

    def intern(self, kind: StringKind, value: str) -> int:
        """Id of ``value``, new or not."""
        found = self._tables[kind].ids.get(value)
        if found is not None:
            return found
        with self._lock:
            table = self._tables[kind]
            if value in table.ids:
                return table.ids[value]
            table.characters += len(value) + _COST
            if kind in OPEN_KINDS and table.characters > MOST_CHARACTERS:
                table = self._tables[kind] = _Table(first=table.first + len(table.texts))
            number = table.first + len(table.texts)
            table.texts.append(value)
            self._new.append((kind, number, value))
            table.ids[value] = number
            return number

    def text(self, kind: StringKind, identity: int) -> str:
        """The string behind an id that is not forgotten."""
        table = self._tables[kind]
        return table.texts[identity - table.first]

    def drain(self) -> tuple[tuple[StringKind, int, str], ...]:
        """What was added since the last call."""
        with self._lock:
            new, self._new = tuple(self._new), []
        return new


def json_list(values: object) -> str:
    """A list of numbers as it is stored: ``[4,64]``."""
    return json.dumps(values, separators=(",", ":"))
