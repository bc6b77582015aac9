"""Runs a program under capture, in this process, as ``python`` would run it.

Neither torch nor numpy is imported here: the program does that, and capture is armed right after.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import importlib.util
import os
import runpy
import signal
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from opguard.capture.imports import when_imported
from opguard.capture.inside import Inside, inside
from opguard.capture.unarmed import Marks
from opguard.errors import UsageError
from opguard.settings import CaptureSettings, Target
from opguard.store.launch import resolve_rank, resolve_run_id
from opguard.store.run_folder import check_free, make_folder

if TYPE_CHECKING:
    from opguard.capture.session import CaptureSession, Ending

_INTERRUPTED: Final = 130
_FAILED: Final = 1
_DEFECT: Final = 70
_THIS_FILE: Final = __file__


def run_program(settings: CaptureSettings, target: Target, say: Callable[[str], None]) -> int:
    """Run ``target`` under capture; returns its exit code.

    Raises:
        UsageError: no such program, a folder that holds something else, or a nested run.
        CaptureError: the folder cannot be written, or the rank is unknown.
    """
    around = inside()
    if around is not None and around.pid == os.getpid():
        raise UsageError("opguard run inside opguard run: this process is captured already")
    if not target.is_module and not Path(target.name).exists():
        raise UsageError(f"no such script: {target.name}")
    if target.is_module:
        sys.path.insert(0, str(Path.cwd()))
        if importlib.util.find_spec(target.name.partition(".")[0]) is None:
            raise UsageError(f"no module named {target.name}")
    rank, world_size = resolve_rank(os.environ)
    output = Path(settings.output or "").absolute()  # the program may change directory
    settings = replace(settings, output=output)
    check_free(output, rank, world_size, resolve_run_id(os.environ, world_size), settings.force)
    make_folder(output)
    marks = Marks()
    Inside(os.getpid(), output, settings.mode, settings.mechanism, marks.folder).announce()
    process = os.getpid()
    launched = _Launched(settings, [target.name, *target.args], say, marks)
    cancel = when_imported("torch", launched.start)
    try:
        code, exception, interrupted = _run(target)
        if os.getpid() != process:
            return code  # a child that the program forked reached its end here
        cancel()
        if not interrupted:
            _join_threads_as_python_does()
        return launched.stop(code, exception, interrupted)
    finally:
        cancel()
        if os.getpid() == process:
            marks.remove()


class _Launched:
    """The capture of a launched program: started by its import of torch."""

    def __init__(
        self, settings: CaptureSettings, command: list[str], say: Callable[[str], None],
        marks: Marks,
    ) -> None:  # fmt: skip
        self._marks = marks
        self._settings = settings
        self._command = command
        self._say = say
        self._session: CaptureSession | None = None
        self._refused: Exception | None = None

    def start(self) -> None:
        from opguard.capture.session import CaptureSession

        try:
            session = CaptureSession(self._settings, self._command, self._say, self._marks)
            session.start()
        except Exception as error:  # noqa: BLE001  (raised again by stop(), see below)
            # Here it would make the import of torch fail, and the program might try it again.
            self._refused = error
            raise SystemExit(getattr(error, "exit_code", _DEFECT)) from None
        self._session = session

    def stop(self, code: int, exception: str | None, interrupted: bool) -> int:
        if self._refused is not None:
            raise self._refused
        if self._session is None:
            self.start()  # a program without torch leaves a run without events
        session = self._session
        assert session is not None  # noqa: S101  (start() raised otherwise)
        with _deaf():
            session.stop(_ending(code, exception, interrupted))
        return code


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """The program has ended: what a timer of its own would raise now is not its end. Ctrl-C is, and
    who asks it to end is answered after the run is closed."""
    theirs: dict[signal.Signals, Any] = {}
    missed: set[int] = set()

    def miss(number: int, _: FrameType | None) -> None:
        missed.add(number)

    try:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler) and handler is not signal.default_int_handler:
                    theirs[number] = handler
                    own = signal.default_int_handler if number == signal.SIGINT else miss
                    signal.signal(number, own)
        yield
    finally:
        for number, handler in theirs.items():
            signal.signal(number, handler)
    if signal.SIGTERM in missed:
        signal.raise_signal(signal.SIGTERM)


def _ending(code: int, exception: str | None, interrupted: bool) -> Ending:
    from opguard.capture.session import Ending

    return Ending(exit_code=code, exception=exception, interrupted=interrupted)


def _run(target: Target) -> tuple[int, str | None, bool]:
    """(exit code, name of the exception it died of, whether it did not reach its own end)."""
    sys.argv = [target.name, *target.args]
    try:
        if target.is_module:
            runpy.run_module(target.name, run_name="__main__", alter_sys=True)
        elif Path(target.name).is_dir() or zipfile.is_zipfile(target.name):
            runpy.run_path(target.name, run_name="__main__")
        else:
            sys.path.insert(0, str(Path(target.name).resolve().parent))
            _run_script(Path(target.name).absolute())
    except SystemExit as end:
        return _exit_code(end.code), None, False
    except KeyboardInterrupt as error:
        _print(error)
        return _INTERRUPTED, "KeyboardInterrupt", True
    except BaseException as error:  # noqa: BLE001  (whatever the program dies of)
        _print(error)
        return _FAILED, type(error).__name__, True
    return 0, None, False


def _run_script(path: Path) -> None:
    """Run a file as the interpreter does: as a new ``__main__`` that stays after its end."""
    module = ModuleType("__main__")
    module.__file__ = str(path)
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", str(path))
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102  (running the program is what was asked for)


def _exit_code(code: Any) -> int:
    """What the interpreter makes of ``sys.exit(code)``."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return _FAILED


def _print(error: BaseException) -> None:
    """The traceback as ``python`` prints it: from the program's first frame on."""
    found: TracebackType | None = error.__traceback__
    walked = found
    while walked is not None:
        if walked.tb_frame.f_code.co_filename in (_THIS_FILE, runpy.__file__) or (
            walked.tb_frame.f_code.co_filename.startswith("<frozen runpy")
        ):
            found = walked.tb_next
        walked = walked.tb_next
    traceback.print_exception(type(error), error, found)


def _join_threads_as_python_does() -> None:
    """What a signal handler raises meanwhile is printed, and does not change the exit code."""
    try:
        _join_threads()
    except BaseException as error:  # noqa: BLE001  (printed)
        sys.stderr.write(f"Exception ignored in: {threading!r}\n")
        traceback.print_exception(error)


def _join_threads() -> None:
    """Wait for what the interpreter would wait for, so that it is captured."""
    # Idle pools of concurrent.futures end when told to, which the interpreter does first; that
    # they are told again when it ends does them nothing.
    for tell in reversed(getattr(threading, "_threading_atexits", ())):
        tell()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
