"""Captures that begin or end while a call of another thread is running."""

import threading

import torch
from support import TIMEOUT, capture, nothing_left, run_of

began, go = threading.Event(), threading.Event()


@torch.library.custom_op("stress::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    began.set()
    assert go.wait(TIMEOUT)
    return x + 1


def long_call():
    waits(torch.ones(3))
    torch.zeros(2).cos()


stop = threading.Event()


def busy():
    while not stop.is_set():
        torch.ones(3, requires_grad=True).mul(2).sum().backward()


def start(target):
    thread = threading.Thread(target=target)
    thread.start()
    return thread


others = [start(busy) for _ in range(2)]
for number in range(8):
    # The call begins in one capture and returns in the next, whose recorder may well have the
    # address of the first.
    began.clear(), go.clear()
    with capture(f"{number}-first"):
        thread = start(long_call)
        assert began.wait(TIMEOUT)
    with capture(f"{number}-second"):
        go.set()
        thread.join()
        torch.ones(2).tan()
    names = run_of(f"{number}-second").names
    assert "waits" not in names and "tan" in names and "cos" in names, names

    # It begins before the capture, and ends in it.
    began.clear(), go.clear()
    thread = start(long_call)
    assert began.wait(TIMEOUT)
    with capture(f"{number}-third"):
        go.set()
        thread.join()
    assert "waits" not in run_of(f"{number}-third").names
    assert "cos" in run_of(f"{number}-third").names
stop.set()
for thread in others:
    thread.join()


# A capture that its own operator closes.
@torch.library.custom_op("stress::closes", mutates_args=())
def closes(x: torch.Tensor) -> torch.Tensor:
    session.__exit__(None, None, None)
    return x + 1


session = capture("closed")
session.__enter__()
closes(torch.ones(2))
assert run_of("closed").names == ["ones"], run_of("closed").names
nothing_left()

print("ok")
