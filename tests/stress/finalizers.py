"""Finalizers that call operators, and end captures, wherever a tensor dies."""

import gc
import threading
import time
import weakref

import torch
from support import TIMEOUT, calls, capture, nothing_left

# The collector runs on whatever thread allocates: on those that make room for rows, too.
ran = {}


class Cyclic:
    def __init__(self, count):
        self.me, self.count = self, count
        weakref.finalize(self, torch.zeros, 2)

    def __del__(self):
        ours = threading.current_thread().name.startswith("opguard")
        ran[ours] = ran.get(ours, 0) + 1
        calls(self.count if ours else 3)


class Kept(torch.Tensor):
    def __del__(self):
        calls(2)


gc.set_threshold(5, 2, 2)
until = time.monotonic() + TIMEOUT
with capture("run"):
    while ran.get(True, 0) < 2 and time.monotonic() < until:
        Cyclic(50_000)  # more than the queue holds
        for _ in range(500):
            torch.ones(2).as_subclass(Kept)
    gc.set_threshold(1000)
assert ran.get(True, 0) >= 2, ran
nothing_left()

print("ok")
