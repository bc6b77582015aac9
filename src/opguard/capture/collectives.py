"""Collectives whose data are not there yet: their events wait until they are.

An event is written where the program waits for it, or where the next captured operator touches
its storage. Both are places in the program, so that the order does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from opguard.capture import torch_private
from opguard.capture.call import TENSOR, Call, kind_of, leaves
from opguard.capture.traits import traits

MOST_PENDING: Final = 2048
"""Collectives that nobody waits for keep their tensors: past this many the oldest is written as
it stands. A count is a place in the program, too."""


@dataclass
class PendingCollective:
    """A collective that was called and not waited for."""

    work: Any
    """``torch.distributed.Work``; None for functional collectives, which give no handle."""
    reads: frozenset[int]
    """Keys of the storages that it reads: others may read them meanwhile."""
    writes: frozenset[int]
    """Keys of those that it writes or returns."""
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

    def called(self, call: Call, result: Any, finish: Callable[..., None]) -> None:
        """A collective returned: its event is written by ``finish(call, result, ready=…)`` now if
        nothing is to arrive, else where the data are there."""
        reads = [tensor for _, tensor in call.reads]
        writes = [tensor for _, tensor in call.writes]
        work = work_in(result)
        value = None if work is not None else result
        writes += [v for _, v in leaves(value, "") if kind_of(v) == TENSOR]
        if not writes:  # send, barrier: nothing arrives
            finish(call, value)
            return

        def finish_now(ready: bool) -> None:
            finish(call, value, ready=ready)

        keys = frozenset(storage_keys(reads)), frozenset(storage_keys(writes))
        self.pending.append(PendingCollective(work, *keys, finish_now, (reads, writes)))
        if len(self.pending) > MOST_PENDING:
            self._finish(self.pending[0], ready=self.pending[0].ready())

    def arrived(self, storages: list[int]) -> None:
        """The program has waited for the data of these storages."""
        self._finish_all(storages, (), ready=True)

    def touch(self, call: Call) -> None:
        """A call touches what is being written, or writes what is being read: the events of those
        collectives are written now."""
        reads = storage_keys(tensor for _, tensor in call.reads)
        writes = storage_keys(tensor for _, tensor in call.writes)
        self._finish_all(reads, writes, ready=False)

    def _finish_all(self, reads: Iterable[int], writes: Iterable[int], *, ready: bool) -> None:
        written = set(writes)
        touched = written.union(reads)
        for pending in list(self.pending):
            if touched.isdisjoint(pending.writes) and written.isdisjoint(pending.reads):
                continue
            if not any(pending.work is work for work in self._waited_for):
                self._finish(pending, ready=ready or pending.ready())

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

    def finish_all(self) -> None:
        """The capture ends."""
        for pending in list(self.pending):
            self._finish(pending, ready=pending.ready())

    def _finish(self, pending: PendingCollective, *, ready: bool) -> None:
        self.pending.remove(pending)
        pending.finish(ready)


def work_in(result: Any) -> Any:
    """The boxed Work that a c10d operator returned, as the object the program holds, or None."""
    last = result[-1] if isinstance(result, (tuple, list)) and result else result
    return torch_private.work_of(last)


def storage_keys(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Keys of the storages of those that are plain."""
    return [
        torch_private.storage_key(tensor.untyped_storage())
        for tensor in tensors
        if traits(tensor).plain
    ]
