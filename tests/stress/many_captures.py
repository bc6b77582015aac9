"""Captures one after the other leave neither memory nor threads behind."""

import os
import threading
import time
from pathlib import Path

import torch
from support import TIMEOUT, capture, in_threads, nothing_left


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


net = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(2, 4)).sum().backward()
tasks = len(os.listdir("/proc/self/task"))


def one():
    with capture("run", force=True):
        opt.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        opt.step()
        in_threads(lambda: torch.ones(5))


marks = []
for number in range(200):
    one()
    if number >= 50:
        marks.append(resident())
early, late = max(marks[:50]), max(marks[-50:])
assert late - early < 4 << 20, (early, late)
nothing_left()
assert threading.active_count() == 1, threading.enumerate()
until = time.monotonic() + TIMEOUT
while len(os.listdir("/proc/self/task")) > tasks:  # they are gone soon after their end
    assert time.monotonic() < until
    time.sleep(0.01)

print("ok")
