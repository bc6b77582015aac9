"""Other threads and processes of the program: armed, disarmed or at least counted."""

from __future__ import annotations

import multiprocessing.process
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from opguard.capture.unarmed import Marks, ObservedTarget

# A process's target is private; without it spawned ranks are counted, not recognised.
_PYTHON_NAMES: Final = ("python", "torchrun", "opguard")
_COMPILERS: Final = ("torch._inductor.", "torch.utils.cpp_extension", "triton.")
"""Modules whose processes build kernels and compute nothing of the run."""


class Processes:
    """Counts what capture cannot see, and arms the threads that start while it is on."""

    def __init__(
        self, arm_thread: Callable[[], Callable[[], None]], marks: Marks | None, *,
        sees_all_threads: bool,
    ) -> None:  # fmt: skip
        """``arm_thread()`` arms the calling thread and returns what disarms it; ``marks`` is
        where spawned ranks that are not armed leave theirs; ``sees_all_threads``: those that run
        already are captured too."""
        self._sees_all_threads = sees_all_threads
        self._marks = marks
        self._arm_thread = arm_thread
        self._start_thread = threading.Thread.start
        self._start_process = multiprocessing.process.BaseProcess.start
        self.uncaptured = 0
        self.unarmed_threads = 0

    def arm(self) -> None:
        """From now on threads are armed when they start, and processes counted."""
        self.unarmed_threads = 0 if self._sees_all_threads else sum(
            1 for thread in threading.enumerate()
            if thread is not threading.current_thread() and not thread.name.startswith("opguard")
        )  # fmt: skip
        observer = self

        def start_thread(thread: threading.Thread) -> None:
            observer._wrap_run(thread)
            observer._start_thread(thread)

        def start_process(process: Any) -> None:
            if observer._marks is not None and getattr(process, "_target", None) is not None:
                process._target = ObservedTarget(process._target, observer._marks.folder)
            before = observer.uncaptured
            observer._start_process(process)
            if observer.uncaptured == before:  # a forked one was counted by the fork itself
                observer.uncaptured += 1

        _set_start(threading.Thread, start_thread)
        _set_start(multiprocessing.process.BaseProcess, start_process)
        _COUNTERS.add(self)
        _count_children()

    def disarm(self) -> None:
        """Put everything back."""
        _set_start(threading.Thread, self._start_thread)
        _set_start(multiprocessing.process.BaseProcess, self._start_process)
        _COUNTERS.discard(self)

    def _wrap_run(self, thread: threading.Thread) -> None:
        if thread.name.startswith("opguard"):
            return
        run = thread.run

        def armed_run() -> None:
            disarm = self._arm_thread()
            try:
                run()
            finally:
                disarm()
                vars(thread).pop("run", None)  # else the thread would refer to itself

        thread.run = armed_run  # type: ignore[method-assign]


def _set_start(owner: Any, start: Callable[..., None]) -> None:
    owner.start = start


_COUNTERS: Final[set[Processes]] = set()
_hooked: list[bool] = []


def _count_children() -> None:
    """Count forks and Python children; an audit hook can only be added, so it is added once."""
    if _hooked:
        return
    _hooked.append(True)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and _COUNTERS:
            name = Path(os.fsdecode(arguments[0])).name
            if name.startswith(_PYTHON_NAMES) and not _compiles():
                _count()

    def forked() -> None:
        _count()

    sys.addaudithook(audit)
    os.register_at_fork(after_in_parent=forked)


def _compiles() -> bool:
    """Whether a compiler is what runs here."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_COMPILERS):
            return True
        frame = frame.f_back
    return False


def _count() -> None:
    for processes in _COUNTERS:
        processes.uncaptured += 1
