"""What programs share that would crash, hang or leak under a careless recorder.

Each is run in a process of its own as ``python NAME.py FOLDER`` and prints ``ok`` last.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import opguard
from captured import Captured, read
from opguard.capture.session import CaptureSession

work = Path(sys.argv[1])
TIMEOUT = 40
start_thread = threading.Thread.start


def capture(name: str, **options: Any) -> Any:
    return opguard.capture(work / name, mechanism="native", **options)


def run_of(name: str) -> Captured:
    return read(work / name)[0]


def in_threads(*targets: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def nothing_left() -> None:
    assert CaptureSession.active() is None
    assert not torch.nn.modules.module._global_forward_hooks
    assert threading.Thread.start is start_thread
    until = time.monotonic() + TIMEOUT
    while any(map(is_of_opguard, threading.enumerate())):
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.01)


def is_of_opguard(thread: threading.Thread) -> bool:
    """Python lists for ever what an exception kept from starting: it has no ident."""
    return thread.name.startswith("opguard") and thread.ident is not None


def child(what: Callable[[], Any]) -> int:
    """Forks; the child does ``what()`` and ends. Its exit code, -14 if it hung."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(TIMEOUT)
        try:
            what()
        except Exception:  # the parent is told by the exit code; SystemExit ends the child
            traceback.print_exc()
            os._exit(1)
        os._exit(7)
    return exit_code(pid)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def calls(count: int) -> torch.Tensor:
    x = torch.ones(3)
    for _ in range(count):
        x = x + 1
    return x
