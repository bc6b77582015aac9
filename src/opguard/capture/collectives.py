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
        return self.work is not None and torch_private.work_is_done(self.work)


class Collectives:
    """The collectives in flight of one process."""

    def __init__(self) -> None:
        self.pending: list[PendingCollective] = []
        self._waited_for: list[Any] = []
        """Works whose ``wait`` is running: what it calls belongs to the collective."""
        self._restore: Callable[[], None] | None = None

    def add(self, pending: PendingCollective) -> None:
        """A collective was called."""
        self.pending.append(pending)

    def touched(self, storages: Iterable[int]) -> None:
        """An operator reads or writes these storages: what is pending on them is written now."""
        touched = set(storages)
        for pending in [p for p in self.pending if not touched.isdisjoint(p.storages)]:
            if not any(pending.work is work for work in self._waited_for):
                self._finish(pending, ready=pending.ready())

    def waiting(self, work: Any) -> None:
        """The program calls ``work.wait()``."""
        self._waited_for.append(work)

    def waited(self, work: Any, *, arrived: bool) -> None:
        """It returned, or raised: then the data did not arrive."""
        self._waited_for = [other for other in self._waited_for if other is not work]
        if not arrived:
            return
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

    def arm(self, observe: Callable[[Any, str], None]) -> None:
        """Wrap ``Work.wait``; ``observe`` is called with the work and ``begins``, ``returned`` or
        ``raised``."""
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
