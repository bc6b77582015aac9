"""One capture from arming to closing: owns the run being written and the order of teardown."""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from opguard import environment
from opguard.capture import torch_private
from opguard.capture.dispatch import CaptureMode, Switch, install, uninstall
from opguard.capture.final_state import FinalState
from opguard.capture.interning import Interner
from opguard.capture.modules import Program
from opguard.capture.patches import (
    Patches,
    patch_exports,
    patch_opaque_regions,
    patch_resizing,
    patch_seeding,
)
from opguard.capture.processes import Processes
from opguard.capture.random_state import process_states
from opguard.capture.recorder import Recorder
from opguard.capture.rows import Rows
from opguard.capture.unarmed import Marks, watch_this_process
from opguard.errors import NativeError, OpguardError, UsageError
from opguard.fingerprint import spec
from opguard.model import FINGERPRINT_VERSION
from opguard.settings import CaptureSettings
from opguard.store.environment_key import environment_key
from opguard.store.launch import resolve_rank, resolve_run_id
from opguard.store.run_folder import check_free, make_folder, run_is_of_others
from opguard.store.run_writer import RunWriter

MECHANISM: Final = "dispatch"
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

    def __init__(
        self,
        settings: CaptureSettings,
        command: Sequence[str],
        say: Say,
        marks: Marks | None = None,
    ) -> None:
        """``say`` prints one line to the user: used when capture has to stop early. ``marks``
        is where unarmed ranks leave theirs.

        Raises:
            UsageError: the settings ask for what is not there.
        """
        if settings.output is None:
            raise UsageError("a capture needs a folder")
        if settings.require_native:
            raise UsageError("--require-native: this build has no native parts")
        if settings.mechanism == "native":
            raise NativeError("--mechanism native: this build has no native parts")
        self._settings = settings
        self._command = tuple(command)
        self._say = say
        self._switch = Switch(collectives_only=settings.mode == "collectives")
        self._interner = Interner()
        self._state = FinalState()
        self._program = Program(self._interner, self, self.fail)
        self._recorder = Recorder(
            self._interner, self._program, settings.mode, self._submit, self._first_event
        )
        self._marks = marks
        self._processes = Processes(self._arm_thread, marks)
        self._patches = Patches()
        self._opaque: Counter[str] = Counter()
        self._seeded: set[str] = set()
        self._main_mode: CaptureMode | None = None
        self._writer: RunWriter | None = None
        self._failed = False
        self._ended = False
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
        if CaptureSession._open is not None:
            raise UsageError("a capture is already open in this process")
        self._rank, self._world_size = _rank()
        self._run_id = resolve_run_id(os.environ, self._world_size)
        self._output = Path(self._settings.output or "").absolute()
        check_free(self._output, self._rank, self._world_size, self._run_id, self._settings.force)
        make_folder(self._output)
        self._opening = self._describe()
        if self._world_size > 1:
            self._open_run()
        CaptureSession._open = self
        atexit.register(self._at_exit)
        _watch_forks()
        self._program.arm()
        self._recorder.collectives.arm(self._guard(self._recorder.waits))
        patch_exports(self._patches, self._guard(self._recorder.exported))
        patch_opaque_regions(self._patches, self._guard(self._entered_opaque))
        patch_resizing(self._patches, self._guard(self._recorder.storage_resized))
        patch_seeding(self._patches, self._seeded.add)
        self._processes.arm()
        self._select(0)
        self._main_mode = self._new_mode()
        install(self._main_mode)

    def _open_run(self) -> RunWriter:
        """At the first event of a process that is alone: one that only spawns ranks has none, and
        the run is theirs."""
        self._writer = RunWriter(
            self._output,
            rank=self._rank,
            world_size=self._world_size,
            run_id=self._run_id,
            opening=self._opening,
            idle=self._recorder.take_waiting,
            force=self._settings.force,
        )
        return self._writer

    def _first_event(self) -> None:
        if self._writer is None:
            try:
                self._open_run()
            except OpguardError as error:
                self.fail(error)

    def _describe(self) -> dict[str, Any]:
        facts = environment.facts()
        return {
            "fingerprint_version": FINGERPRINT_VERSION,
            "environment": facts,
            "environment_key": environment_key(facts, MECHANISM),
            "probe": environment.numerics_probe(),
            "command": environment.mask_command(self._command),
            "mode": self._settings.mode,
            "mechanism": MECHANISM,
            "settings": {
                "steps": self._settings.steps,
                "stop_after": self._settings.stop_after,
                "watch": self._settings.watch,
            },
            "rng": {
                name: f"{spec.mix64(np.frombuffer(data, np.uint8)):016x}"
                for name, data in process_states()
            },
        }

    def _new_mode(self) -> CaptureMode:
        return CaptureMode(self._recorder, self._switch, self.fail)

    def _arm_thread(self) -> Callable[[], None]:
        if not self._switch.armed:
            return lambda: None
        mode = self._new_mode()
        install(mode)
        return lambda: uninstall(mode)

    def _guard(self, observe: Callable[..., None]) -> Callable[..., None]:
        """An observer that does nothing once capture is over, and never raises."""

        def guarded(*args: Any) -> None:
            if not self._switch.armed:
                return
            try:
                observe(*args)
            except Exception as error:  # noqa: BLE001  (a defect of ours must not stop the program)
                self.fail(error)

        return guarded

    # While the program runs

    def set_step(self, step: int) -> None:
        """The program says which step it is in."""
        self._program.set_step(step)

    def watch(self, name: str, tensor: torch.Tensor) -> None:
        """Read ``tensor`` with the final state, if the settings let that name in."""
        names = self._settings.watch
        if not names or any(fnmatchcase(name, pattern) for pattern in names):
            self._state.watch(name, tensor)

    def saw_module(self, module: torch.nn.Module, step: int) -> None:
        """An outermost module is called."""
        with self._recorder.lock:
            self._state.saw(module, step)
            if self._state.crowded:
                self._release(step)

    def saw_optimizer(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """An optimizer makes a step."""
        with self._recorder.lock:
            self._state.saw(optimizer, step)

    def step_finished(self, step: int) -> None:
        """The next step begins."""
        with self._recorder.lock:
            self._release(step)
        self._select(step)

    def _release(self, step: int) -> None:
        self._recorder.begin_state_pass()
        for entries in self._state.released(step):
            self._write_state(entries)

    def _select(self, step: int) -> None:
        settings = self._settings
        if settings.steps is not None and self._switch.armed:
            first, end = settings.steps
            inside = first <= step < end
            if inside and not self._switch.on:
                self._recorder.forget_values()
            self._switch.on = inside
        if settings.stop_after is not None:
            limit, unit = settings.stop_after
            if unit == "events":
                self._switch.limit = limit
            elif step >= limit:
                self._switch.limit = 0

    def _entered_opaque(self, name: str) -> None:
        self._opaque[name] += 1
        self._recorder.forget_values()

    def _submit(self, rows: Rows) -> None:
        writer = self._writer
        if writer is not None:
            writer.submit(rows)
            if writer.failed is not None and not self._failed:
                self.fail(writer.failed)

    def fail(self, error: BaseException) -> None:
        """Capture cannot go on: it stops, says so once, and leaves the program alone."""
        self._switch.disarm()
        if not self._failed:
            self._failed = True
            text = str(error) or type(error).__name__
            if not isinstance(error, (OpguardError, OSError)):
                text = f"a defect in opguard: {type(error).__name__}: {text}"
                if os.environ.get("OPGUARD_DEBUG"):
                    sys.excepthook(type(error), error, error.__traceback__)
            self._say(f"capture stopped, the run stays partial: {text}")

    # Teardown

    def stop(self, ending: Ending) -> None:
        """Disarm, read the final state, close the run. Calling it again does nothing."""
        if self._ended:
            return
        self._ended = True
        self.stopped = self._switch.stopped
        was_armed = self._switch.armed
        self._disarm()
        try:
            if was_armed:
                self._close_run(ending)
            elif self._writer is not None:
                self._recorder.flush()  # the run keeps what it had
                self._writer.abandon()
        finally:
            self._recorder.close()

    def _close_run(self, ending: Ending) -> None:
        with self._recorder.lock:  # a thread may be writing the first event just now
            if self._writer is None:
                if run_is_of_others(self._output):
                    return
                self._first_event()
        writer = self._writer
        if writer is None:  # it could not be opened, and that has been said
            return
        self._recorder.collectives.finish_all()
        if not ending.interrupted:
            self._recorder.begin_state_pass()
            for entries in self._state.all():
                self._write_state(entries)
        self._recorder.flush()
        writer.close(self._closing(ending, writer))
        if writer.failed is not None:
            self.fail(writer.failed)

    def _at_exit(self) -> None:
        """The interpreter ends with the capture open: later its modules are gone."""
        self.stop(Ending(exit_code=None, interrupted=True))

    def _disarm(self) -> None:
        """Take everything out of the program again, last in first out."""
        self._switch.disarm()
        atexit.unregister(self._at_exit)
        if self._main_mode is not None:
            uninstall(self._main_mode)
        self._processes.disarm()
        self._patches.restore()
        self._recorder.collectives.disarm()
        self._program.disarm()
        CaptureSession._open = None

    def after_fork(self) -> None:
        """In a forked child: the writer's thread does not exist there, so nothing is captured."""
        self._ended = True
        self._disarm()
        if self._writer is not None:
            self._writer.disarm_after_fork()
        if self._marks is not None:
            watch_this_process(self._marks.folder)

    def _write_state(self, entries: Iterator[tuple[str, Any]]) -> None:
        try:
            self._recorder.emit_state(entry for entry in entries if not _is_dataless(entry[1]))
        except Exception as error:  # noqa: BLE001  (a defect of ours must not stop the program)
            self.fail(error)

    def _closing(self, ending: Ending, writer: RunWriter) -> dict[str, Any]:
        return {
            "coverage": {
                "unfingerprinted": dict(sorted(self._recorder.reader.unfingerprinted.items())),
                "opaque_regions": sorted(self._opaque),
                "opaque_calls": sum(self._opaque.values()),
                "foreign_values": self._recorder.foreign_values,
                "uncaptured_processes": self._processes.uncaptured,
                "uncaptured_ranks": 0 if self._marks is None else self._marks.count(),
                "unarmed_threads": self._processes.unarmed_threads,
                "lost_events": writer.lost_events + self._recorder.lost_events,
            },
            "steps": self._program.step,
            "seeded": sorted(self._seeded),
            "exit_code": ending.exit_code,
            "exception": ending.exception,
            "interrupted": ending.interrupted,
            "stopped": self.stopped,
        }


def _is_dataless(value: Any) -> bool:
    """Meta and fake tensors hold nothing that could be compared."""
    return isinstance(value, torch.Tensor) and torch_private.is_fake(value)


def _rank() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return resolve_rank(os.environ)


_forks_watched: list[bool] = []


def _watch_forks() -> None:
    """Registered once: a fork handler cannot be taken back."""
    if _forks_watched:
        return
    _forks_watched.append(True)

    def after_in_child() -> None:
        session = CaptureSession.active()
        if session is not None:
            session.after_fork()

    os.register_at_fork(after_in_child=after_in_child)
