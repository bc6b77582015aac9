"""Locks of the program that the writer's threads ask for, and process groups written in Python."""

import contextlib
import threading
import time

import torch
import torch.distributed as dist
from support import calls, capture, in_threads, nothing_left, run_of
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

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


# A symbolic size answers in Python, too.
environment = ShapeEnv()
symbol = environment.create_symbol(7, ConstantSource("s"), dynamic_dim=DimDynamic.DYNAMIC)
size = environment.create_symintnode(symbol, hint=7, source=ConstantSource("s"))
ended.clear()


def resizes():
    storage = torch.ones(4).untyped_storage()
    while not ended.is_set():
        storage.resize_(16)


def asks():
    for _ in range(2000):
        torch.empty((size, 2), device="meta")
    ended.set()


with capture("sizes"):
    in_threads(resizes, asks)
nothing_left()

print("ok")
