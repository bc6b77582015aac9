"""Threads that leave by SystemExit, in a capture of their own."""

import sys

import torch
from support import capture, in_threads, nothing_left, run_of


def leaves():
    torch.ones(3)
    sys.exit(3)


def captures():
    with capture("in-thread"):
        torch.ones(4)
        in_threads(leaves, lambda: torch.zeros(2))
        sys.exit(4)


in_threads(captures)
run = run_of("in-thread")
assert sorted(run.names) == ["ones", "ones", "zeros"]
nothing_left()

print("ok")
