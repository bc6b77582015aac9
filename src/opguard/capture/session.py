"""One capture from arming to closing: owns the run being written and the order of teardown."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from opguard.capture import torch_private
from opguard.capture.blame import raised_by_us
from opguard.capture.choice import choose
from opguard.capture.final_state import FinalState, is_dataless
from opguard.capture.mechanism import Mechanism, Session
from opguard.capture.opening import describe_opening, rank_of_process
from opguard.capture.patches import Patches, patch_exports, patch_resizing, patch_seeding
from opguard.capture.processes import Processes
from opguard.capture.teardown import Teardown, apart
from opguard.capture.unarmed import Marks, watch_this_process
from opguard.errors import OpguardError, UsageError
from opguard.model import PendingChunk
from opguard.settings import CaptureSettings
from opguard.store.launch import resolve_run_id
from opguard.store.run_folder import check_free, make_folder, run_is_of_others
from opguard.store.run_writer import RunWriter

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ending:
    """How the captured program ended."""

    exit_code: int | None = 0
    exception: str | None = None
    interrupted: bool = False
    """It did not come to its own end: the run counts as partial."""


class CaptureSession:
    """One capture of this process; at most one is open at a time."""

    _open: CaptureSession | None = None
    _claim = threading.Lock()

    def __init__(
        self,
        settings: CaptureSettings,
        command: Sequence[str],
        say: Say,
        marks: Marks | None = None,
        note: Say | None = None,
    ) -> None:
        """``say`` tells the user in one line that capture has to stop early, ``note`` (else
        ``say``) why the recorder is not used. ``marks`` is where unarmed ranks leave theirs.

        Raises:
            UsageError: the settings ask for what is not there.
        """
        if settings.output is None:
            raise UsageError("a capture needs a folder")
        self._settings = settings
        self._command = tuple(command)
        self._say = say
        self._armed = True
        self._inside = True
        """In the selected steps."""
        self._state = FinalState()
        session = Session(settings.mode, self, self._submit, self._first_event, self.fail)
        self._mechanism: Mechanism = choose(settings, session, note or say)
        self._marks = marks
        self._processes = Processes(
            self._arm_thread, marks, sees_all_threads=self._mechanism.sees_all_threads
        )
        self._patches = Patches()
        self._opaque: Counter[str] = Counter()
        self._seeded: set[str] = set()
        self._opening_lock = threading.RLock()
        self._writer: RunWriter | None = None
        self._failed = False
        self._fail_lock = threading.Lock()
        self._process = os.getpid()
        self._teardown = Teardown()
        self._interrupted = 0  # readings of state that the program's own exceptions cut short
        self.stopped = False
        """``--stop-after`` ended the program."""

    @classmethod
    def active(cls) -> CaptureSession | None:
        """The capture that is open in this process."""
        return cls._open

    # Arming

    def start(self) -> None:
        """Open the run and begin to capture.

        Raises:
            UsageError: the folder holds something else, or a capture is open already.
            CaptureError: the folder cannot be written, or the rank is unknown.
        """
        try:
            self._take_claim()
            self._begin()
        except BaseException:
            if CaptureSession._open is self:
                self._armed = False
                self.stop(Ending(exit_code=None, interrupted=True))
            raise

    def _take_claim(self) -> None:
        with CaptureSession._claim:
            other = CaptureSession._open
            if other is not None and not other._teardown.begun:
                raise UsageError("a capture is already open in this process")
            if other is not None:
                other._teardown.finish()
            self._process = os.getpid()
            CaptureSession._open = self

    def _begin(self) -> None:
        self._rank, self._world_size = rank_of_process()
        self._run_id = resolve_run_id(os.environ, self._world_size)
        self._output = Path(self._settings.output or "").absolute()
        check_free(self._output, self._rank, self._world_size, self._run_id, self._settings.force)
        make_folder(self._output)
        self._opening = describe_opening(self._settings, self._command, self._mechanism.name)
        if self._world_size > 1:
            self._open_run()
        atexit.register(self._at_exit)
        _watch_forks()
        mechanism = self._mechanism
        mechanism.program.arm()
        self._patches.later(torch_private.wrap_work_wait(self._guard(mechanism.waits)))
        patch_exports(self._patches, self._guard(mechanism.exported))
        mechanism.patch(self._patches, self._guard(self._entered_opaque))
        patch_resizing(self._patches, self._guard(mechanism.storage_resized))
        patch_seeding(self._patches, self._seeded.add)
        self._processes.arm()
        self._select(0)
        mechanism.start()

    def _open_run(self) -> RunWriter:
        """At the first event of a process that is alone: one that only spawns ranks has none, and
        the run is theirs."""
        self._writer = RunWriter(
            self._output,
            rank=self._rank,
            world_size=self._world_size,
            run_id=self._run_id,
            opening=self._opening,
            idle=self._mechanism.take_waiting,
            force=self._settings.force,
        )
        return self._writer

    def _first_event(self) -> None:
        with self._opening_lock:
            if self._writer is None:
                try:
                    self._open_run()
                except OpguardError as error:
                    self.fail(error)

    def _arm_thread(self) -> Callable[[], None]:
        return self._mechanism.arm_thread() if self._armed else lambda: None

    def _guard(self, observe: Callable[..., None]) -> Callable[..., None]:
        """An observer that does nothing once capture is over, and raises nothing of ours."""

        def guarded(*args: Any) -> None:
            if not self._armed:
                return
            try:
                observe(*args)
            except Exception as error:
                if not raised_by_us(error):
                    raise
                self.fail(error)

        return guarded

    # While the program runs

    def set_step(self, step: int) -> None:
        """The program says which step it is in."""
        self._mechanism.program.set_step(step)

    def watch(self, name: str, tensor: torch.Tensor) -> None:
        """Read ``tensor`` with the final state, if the settings let that name in."""
        names = self._settings.watch
        if not names or any(fnmatchcase(name, pattern) for pattern in names):
            self._state.watch(name, tensor)

    def saw_module(self, module: torch.nn.Module, step: int) -> None:
        """An outermost module is called."""
        with self._mechanism.lock:
            self._state.saw(module, step)
            if self._state.crowded:
                self._release(step)

    def saw_optimizer(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """An optimizer makes a step."""
        with self._mechanism.lock:
            self._state.saw(optimizer, step)

    def step_finished(self, step: int) -> None:
        """The next step begins."""
        with self._mechanism.lock:
            self._release(step)
        self._select(step)

    def _release(self, step: int) -> None:
        self._mechanism.begin_state_pass()
        for entries in self._state.released(step):
            self._write_state(entries)

    def _select(self, step: int) -> None:
        settings = self._settings
        if settings.steps is not None and self._armed:
            first, end = settings.steps
            inside = first <= step < end
            if inside and not self._inside:
                self._mechanism.forget_values()
            self._inside = inside
            self._mechanism.select(inside)
        if settings.stop_after is not None:
            limit, unit = settings.stop_after
            if unit == "events":
                self._mechanism.set_limit(limit)
            elif step >= limit:
                self._mechanism.set_limit(0)

    def _entered_opaque(self, name: str) -> None:
        self._opaque[name] += 1
        self._mechanism.forget_values()

    def _submit(self, rows: PendingChunk) -> None:
        writer = self._writer
        if writer is not None:
            writer.submit(rows)
            if writer.failed is not None and not self._failed:
                self.fail(writer.failed)

    def fail(self, error: BaseException) -> None:
        """Capture cannot go on: it stops, says so once, and leaves the program alone."""
        self._armed = False
        self._mechanism.disarm()
        with self._fail_lock:
            is_first = not self._failed
            self._failed = True
        if is_first:
            text = str(error) or type(error).__name__
            if not isinstance(error, (OpguardError, OSError)):
                text = f"a defect in opguard: {type(error).__name__}: {text}"
                if os.environ.get("OPGUARD_DEBUG"):
                    sys.excepthook(type(error), error, error.__traceback__)
            self._say(f"capture stopped, the run stays partial: {text}")

    # Teardown

    def stop(self, ending: Ending) -> None:
        """Disarm, read the final state, close the run. Calling it again waits until that is done.

        What signal handlers of the program raise meanwhile is raised at the end.
        """
        if os.getpid() != self._process:
            return  # in the child of a fork that Python did not hear of
        with self._teardown.lock:
            if not self._teardown.begun:
                self.stopped = self._mechanism.stopped
                self._teardown.begin(
                    self._mechanism.disarm,
                    self._mechanism.stop,
                    self._take_out,
                    functools.partial(self._end_run, [ending] if self._armed else []),
                    self._mechanism.close,
                    self._release_claim,
                )
            self._armed = False
            self._teardown.finish()

    def _end_run(self, endings: list[Ending]) -> None:
        """Close the run, or leave it partial if capture has stopped, or at a second call."""
        if endings:
            self._close_run(endings.pop())
            return
        self._mechanism.flush()  # the run keeps what it had
        if self._writer is not None:
            self._writer.abandon()

    def _close_run(self, ending: Ending) -> None:
        if self._writer is None:
            apart(self._open_late)
        writer = self._writer
        if writer is None:  # it could not be opened, and that has been said
            return
        with self._mechanism.lock:  # another thread may be releasing entries
            self._mechanism.finish_collectives()
            if not ending.interrupted:
                self._mechanism.begin_state_pass()
                for entries in self._state.all():
                    self._write_state(entries)
        self._mechanism.flush()
        if self._failed:  # at the last moment
            writer.abandon()
            return
        writer.close(self._closing(ending, writer))
        if writer.failed is not None:
            self.fail(writer.failed)

    def _open_late(self) -> None:
        with self._opening_lock:  # a thread may be writing the first event just now
            if self._writer is None and not run_is_of_others(self._output):
                self._first_event()

    def _at_exit(self) -> None:
        """The interpreter ends with the capture open: later its modules are gone."""
        self.stop(Ending(exit_code=None, interrupted=True))

    def _take_out(self) -> None:
        self._processes.disarm()
        self._patches.restore()
        self._mechanism.program.disarm()

    def _release_claim(self) -> None:
        atexit.unregister(self._at_exit)
        if CaptureSession._open is self:
            CaptureSession._open = None

    def after_fork(self) -> None:
        """In a forked child: the writer's thread does not exist there, so nothing is captured."""
        self._armed = False
        self._teardown.begin()
        self._mechanism.after_fork()
        self._take_out()
        self._release_claim()
        if self._writer is not None:
            self._writer.disarm_after_fork()
        if self._marks is not None:
            watch_this_process(self._marks.folder)

    def _write_state(self, entries: Iterator[tuple[str, Any]]) -> None:
        try:
            self._mechanism.emit_state(entry for entry in entries if not is_dataless(entry[1]))
        except BaseException as error:
            if not isinstance(error, Exception) or not raised_by_us(error):
                self._interrupted += 1
                raise
            self.fail(error)

    def _closing(self, ending: Ending, writer: RunWriter) -> dict[str, Any]:
        return {
            "coverage": {
                "unfingerprinted": dict(sorted(self._mechanism.unfingerprinted().items())),
                "opaque_regions": sorted(self._opaque),
                "opaque_calls": sum(self._opaque.values()),
                "foreign_values": self._mechanism.foreign_values,
                "uncaptured_processes": self._processes.uncaptured,
                "uncaptured_ranks": 0 if self._marks is None else self._marks.count(),
                "unarmed_threads": self._processes.unarmed_threads,
                "lost_events": (
                    writer.lost_events + self._mechanism.lost_events + self._interrupted
                ),
            },
            "steps": self._mechanism.program.step,
            "seeded": sorted(self._seeded),
            "exit_code": ending.exit_code,
            "exception": ending.exception,
            "interrupted": ending.interrupted,
            "stopped": self.stopped,
        }


_forks_watched: list[bool] = []


def _watch_forks() -> None:
    """Registered once: a fork handler cannot be taken back."""
    if _forks_watched:
        return
    _forks_watched.append(True)

    def after_in_child() -> None:
        CaptureSession._claim = threading.Lock()  # another thread may have held it
        session = CaptureSession.active()
        if session is not None:
            session.after_fork()

    os.register_at_fork(after_in_child=after_in_child)
