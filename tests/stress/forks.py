"""Forks while other threads work, also where Python does not hear of them."""

import ctypes
import os
import sys
import threading
import time

import torch
from support import TIMEOUT, calls, capture, child, exit_code, nothing_left, run_of

libc = ctypes.PyDLL(None)
stop = threading.Event()


def busy():
    while not stop.is_set():
        torch.ones(20_000, requires_grad=True).mul(2).sum().backward()


def own():
    with capture(f"child-{os.getpid()}"):
        torch.ones(3).mul(2).sum()
    assert "sum" in run_of(f"child-{os.getpid()}").names


def leave():
    sys.exit(7)  # through the interpreter's end


def replace():
    os.execv(sys.executable, [sys.executable, "-c", "raise SystemExit(7)"])


def many():
    calls(30_000)  # more than the queue holds


@torch.library.custom_op("stress::forks", mutates_args=())
def forks(x: torch.Tensor) -> torch.Tensor:
    codes.append(child(own))
    return x + 1


codes = []
threads = [threading.Thread(target=busy) for _ in range(2)]
with capture("run"):
    for thread in threads:
        thread.start()
    for what in (many, leave, replace, many, leave):
        codes.append(child(what))
    # In a child that captures itself torch takes the lock that a thread of the parent held if it
    # called its first operator at the moment of the fork, and waits for ever, with or without us.
    time.sleep(0.2)
    codes.append(child(own))
    forks(torch.ones(2))
    stop.set()
    for thread in threads:
        thread.join()
    # A fork that Python does not hear of. Where a thread has asked for the interpreter lock, the
    # child would wait for that thread, captured or not.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(TIMEOUT)
    time.sleep(0.2)
    pid = libc.fork()
    if pid == 0:
        many()
        os._exit(7)
    sys.setswitchinterval(interval)
    codes.append(exit_code(pid))
    torch.ones(3).sin()
assert codes == [7] * 8, codes
assert run_of("run").one("sin").seq > 0
nothing_left()

print("ok")
