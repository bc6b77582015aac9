"""String tables of one rank: each kind is numbered from 0 in order of first use."""

from __future__ import annotations

import json
import threading

from opguard.model import STRING_KINDS, StringKind


class Interner:
    """Hands out ids; what is new since the last :meth:`drain` goes to the store with a chunk."""

    def __init__(self) -> None:
        # Re-entrant: a finalizer or signal handler may call an operator in the middle of it.
        self._lock = threading.RLock()
        self._ids: dict[StringKind, dict[str, int]] = {kind: {} for kind in STRING_KINDS}
        self._texts: dict[StringKind, list[str]] = {kind: [] for kind in STRING_KINDS}
        self._new: list[tuple[StringKind, int, str]] = []

    def intern(self, kind: StringKind, value: str) -> int:
        """Id of ``value``, new or not."""
        found = self._ids[kind].get(value)
        if found is not None:
            return found
        with self._lock:
            ids = self._ids[kind]
            if value not in ids:
                texts = self._texts[kind]
                number = len(texts)
                texts.append(value)
                self._new.append((kind, number, value))
                ids[value] = number
            return ids[value]

    def text(self, kind: StringKind, identity: int) -> str:
        """The string behind an id."""
        return self._texts[kind][identity]

    def drain(self) -> tuple[tuple[StringKind, int, str], ...]:
        """What was added since the last call."""
        with self._lock:
            new, self._new = tuple(self._new), []
        return new


def json_list(values: object) -> str:
    """A list of numbers as it is stored: ``[4,64]``."""
    return json.dumps(values, separators=(",", ":"))
