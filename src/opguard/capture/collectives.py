"""Collectives whose data are not there yet: their events wait until they are.

An event is written where the program waits for it, or where the next captured operator touches
its storage. Both are places in the program, so that the order does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from opguard.capture import torch_private


@dataclass
class PendingCollective:
    """A collective that was called and not waited for."""

    work: Any
    """``torch.distributed.Work``; None for functional collectives, which give no handle."""
    storages: frozenset[int]
    """Keys of the storages that it reads or writes."""
    finish: Callable[[bool], None]
    """Writes the event; called with False while the data may still be in flight."""
    keep: Any = field(repr=False, default=None)
    """The tensors, so that their storages stay."""

    def ready(self) -> bool:
        """The data are there. Never waits."""
        return self.work is not None and bool(self.work.is_completed())


class Collectives:
    """The collectives in flight of one process."""

    def __init__(self) -> None:
        self.pending: list[PendingCollective] = []
        self._restore: Callable[[], None] | None = None

    def add(self, pending: PendingCollective) -> None:
        """A collective was called."""
        self.pending.append(pending)

    def touched(self, storages: Iterable[int]) -> None:
        """An operator reads or writes these storages: what is pending on them is written now."""
        touched = set(storages)
        for pending in [p for p in self.pending if not touched.isdisjoint(p.storages)]:
            self._finish(pending, ready=pending.ready())

    def waited(self, work: Any) -> None:
        """The program's ``work.wait()`` returned."""
        for pending in [p for p in self.pending if p.work is work]:
            self._finish(pending, ready=True)

    def wait_tensor(self, storages: Iterable[int]) -> None:
        """A functional collective's ``wait_tensor`` returned."""
        waited = set(storages)
        for pending in [p for p in self.pending if not waited.isdisjoint(p.storages)]:
            self._finish(pending, ready=True)

    def finish_all(self) -> None:
        """The capture ends."""
        for pending in list(self.pending):
            self._finish(pending, ready=pending.ready())

    def _finish(self, pending: PendingCollective, *, ready: bool) -> None:
        self.pending.remove(pending)
        pending.finish(ready)

    def arm(self, observe: Callable[[Any], None]) -> None:
        """Wrap ``Work.wait``; ``observe(work)`` is called after it returned."""
        self._restore = torch_private.wrap_work_wait(observe)

    def disarm(self) -> None:
        """Put ``Work.wait`` back."""
        if self._restore is not None:
            self._restore()
            self._restore = None


def work_in(result: Any) -> Any:
    """The boxed Work that a c10d operator returned, as the object the program holds, or None."""
    last = result[-1] if isinstance(result, (tuple, list)) and result else result
    return torch_private.work_of(last)
