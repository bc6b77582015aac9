"""Writes the events of one rank, off the program's threads.

The queue is two ``SimpleQueue`` objects, because their ``put`` may be re-entered: a chunk can
become full inside a finalizer that the garbage collector runs in the middle of another ``submit``.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from opguard.errors import CaptureError
from opguard.model import IdleHook, PendingChunk
from opguard.store.rank_files import RankFiles
from opguard.store.run_folder import create_rank_folder

QUEUE_LENGTH: Final = 4
"""Chunks that may wait to be written before ``submit`` waits: bounds memory."""
IDLE_SECONDS: Final = 1.0
"""How long nothing is submitted before the writer asks for what is waiting."""
_LOOK_SECONDS: Final = 0.1
"""How often a waiting ``submit`` looks whether the writer still lives."""


class RunWriter:
    """One rank of a run being written. Everything here may be used from any thread."""

    def __init__(
        self,
        folder: str | Path,
        *,
        rank: int,
        world_size: int,
        run_id: str | None,
        opening: Mapping[str, Any],
        idle: IdleHook,
        force: bool = False,
    ) -> None:
        """Create or join the run in ``folder`` and start the writer thread.

        Args:
            folder: the run's folder; made where it is missing.
            rank: this process's rank, below ``world_size``.
            world_size: ranks of the job.
            run_id: what the job is known by, None for a random id (``launch.resolve_run_id``).
            opening: what ``open.json`` holds beside versions and rank.
            idle: called on the writer thread after a second without a chunk.
            force: empty the folder of another run first.

        Raises:
            UsageError: the folder holds something else.
            CaptureError: the folder cannot be written.
        """
        self.rank_folder: Final = create_rank_folder(
            Path(folder),
            rank=rank,
            world_size=world_size,
            run_id=run_id,
            opening=opening,
            force=force,
        )
        self._files = RankFiles(self.rank_folder)
        self._idle = idle
        self._items: SimpleQueue[PendingChunk | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(QUEUE_LENGTH):
            self._room.put(None)
        self._early: dict[int, PendingChunk] = {}
        self._failed: OSError | CaptureError | None = None
        # Lists, because several threads count and appending to a list is atomic.
        self._lost: list[int] = []
        self._waited: list[int] = []
        self._summary: Mapping[str, Any] | None = None
        self._asking = False
        self._ended = False
        self._inert = False
        self._thread = threading.Thread(target=self._run, name="opguard-writer", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> OSError | CaptureError | None:
        """Why the writer stopped for good, None while it works. The run is then partial."""
        return self._failed

    @property
    def events_written(self) -> int:
        """Events in published chunks."""
        return self._files.events

    @property
    def lost_events(self) -> int:
        """Events that were handed over and not written: writing had failed or had ended."""
        return sum(self._lost)

    @property
    def waits(self) -> int:
        """How often ``submit`` had to wait for the writer."""
        return len(self._waited)

    @property
    def waited_ns(self) -> int:
        """How long ``submit`` waited, over all threads."""
        return sum(self._waited)

    def submit(self, pending: PendingChunk) -> None:
        """Hand over a chunk; waits while ``QUEUE_LENGTH`` others do. Never raises.

        What a writer is given that has failed or ended is counted as lost.
        """
        if self._inert or sys.is_finalizing():
            return
        if self._failed is not None or self._ended:
            self._lost.append(pending.event_count)
            return
        self._items.put(pending)
        try:
            self._room.get_nowait()
        except Empty:
            self._wait_for_room()

    def close(self, summary: Mapping[str, Any]) -> None:
        """Write what waits, then ``close.json`` with ``summary``; returns when that is done.

        After a failure nothing more is written and the run stays partial: look at ``failed``.
        Calling it again only waits.
        """
        self._end(summary)

    def abandon(self) -> None:
        """Write what waits and leave the run partial; returns when that is done."""
        self._end(None)

    def disarm_after_fork(self) -> None:
        """In a forked child: make this copy do nothing. Touches no lock and no file."""
        self._inert = True

    def _wait_for_room(self) -> None:
        if threading.current_thread() is self._thread:
            return  # an event of the writer thread itself: it would wait for ever
        started = time.perf_counter_ns()
        # The idle hook may need a lock that this thread holds: waiting for each other, both hang.
        while self._thread.is_alive() and not self._asking:
            try:
                self._room.get(timeout=_LOOK_SECONDS)
                break
            except Empty:
                continue
        self._waited.append(time.perf_counter_ns() - started)

    def _end(self, summary: Mapping[str, Any] | None) -> None:
        if self._inert or sys.is_finalizing():
            return  # the thread does not exist, or will never run again
        if not self._ended:
            self._summary = summary
            self._ended = True
            self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                pending = self._items.get(timeout=IDLE_SECONDS)
            except Empty:
                self._guarded(self._publish_idle)
                continue
            if pending is None:
                break
            self._take(pending)
            self._room.put(None)
        while not self._items.empty():  # put by other threads while the end was being signalled
            late = self._items.get()
            if late is not None:
                self._take(late)
        self._guarded(self._finish)
        self._files.release()

    def _take(self, pending: PendingChunk) -> None:
        if self._failed is None:
            self._guarded(functools.partial(self._publish, pending))
        else:
            self._lost.append(pending.event_count)

    def _publish_idle(self) -> None:
        self._asking = True
        try:
            pending = self._idle()
        finally:
            self._asking = False
        if pending is not None:
            self._publish(pending)

    def _publish(self, pending: PendingChunk) -> None:
        """Publish ``pending`` and those that waited for it, in the order of their events."""
        first = pending.first_event
        if first < self._files.events or first in self._early:
            self._lost.append(pending.event_count)
            raise CaptureError(f"event {first} was handed to the writer twice")
        self._early[first] = pending
        while (first := self._files.events) in self._early:
            self._files.publish(self._early[first])
            del self._early[first]

    def _finish(self) -> None:
        if self._early:
            raise CaptureError(
                f"events {self._files.events} to {min(self._early) - 1} never reached the writer"
            )
        if self._summary is not None:
            waits = {"waits": self.waits, "waited_ns": self.waited_ns}
            self._files.close(self._summary, waits)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do ``work`` unless the writer has failed; its failure stops the writer, nothing else."""
        if self._failed is not None:
            return
        try:
            work()
        except (OSError, CaptureError) as error:
            self._fail(error)
        # Whatever it was: were the thread to die of it, the program would wait for it for ever.
        except BaseException as error:  # noqa: BLE001
            failure = CaptureError(f"writing events failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(failure)

    def _fail(self, error: OSError | CaptureError) -> None:
        self._lost.extend(pending.event_count for pending in self._early.values())
        self._early.clear()
        self._failed = error
