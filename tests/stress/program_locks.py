"""Locks of the program that the writer's threads ask for, and process groups written in Python."""

import contextlib
import threading
import time

import torch
import torch.distributed as dist
from support import calls, capture, in_threads, nothing_left, run_of

from opguard.capture import native as mechanism

# A finalizer that runs where rows are built asks for a lock that a thread holds while it waits for
# room: that thread goes on in the end, and nothing is lost.
lock = threading.Lock()
build = mechanism.Rows.build


def with_finalizer(self):
    with lock:
        return build(self)


mechanism.Rows.build = with_finalizer
made = 0
with capture("lock"), lock:
    waited = False
    while not waited:
        began = time.monotonic()
        calls(1)
        waited = time.monotonic() - began > 5
        made += 1
    calls(20)
mechanism.Rows.build = build
nothing_left()
assert run_of("lock").names.count("add") == made + 20


# Its rank is asked of Python, which may be busy with what needs the capture's lock.
class Group(dist.ProcessGroup):
    def __init__(self):
        super().__init__(0, 2)

    def getRank(self):
        time.sleep(0.0005)
        return 0


ended = threading.Event()


def exports():
    x = torch.ones(3)
    while not ended.is_set():
        torch.utils.dlpack.to_dlpack(x)
        torch.from_dlpack(x)


def broadcasts():
    group = Group()
    boxed = group.boxed()
    try:
        for root in (0, 1) * 300:
            with contextlib.suppress(RuntimeError):  # it has no backend
                torch.ops.c10d.broadcast_([torch.ones(3)], boxed, root, 0)
    finally:
        ended.set()


with capture("group"):
    in_threads(exports, broadcasts)
nothing_left()
events = [event for event in run_of("group").events if event.name == "broadcast_"]
assert [bool(event.inputs) for event in events] == [True, False] * 300, events[:3]

print("ok")
