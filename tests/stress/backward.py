"""Backward passes that re-enter, meet on several threads, and call Python."""

import threading

import torch
from support import TIMEOUT, capture, in_threads, nothing_left, run_of


# Re-entrant deeper than torch's limit of 60, so that its pool of threads takes over.
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        if ctx.depth:
            with torch.enable_grad():
                y = torch.ones(2, requires_grad=True)
                Again.apply(y, ctx.depth - 1).sum().backward()
        return grad.clone(), None


def deep():
    x = torch.ones(2, requires_grad=True)
    Again.apply(x, 150).sum().backward()


# Capture starts while this thread is in the middle of a backward pass.
inside, go = threading.Event(), threading.Event()


class Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        inside.set()
        assert go.wait(TIMEOUT)
        return grad * 2


def waiting():
    x = torch.ones(2, requires_grad=True)
    (Wait.apply(x) * 3).sum().backward()
    torch.zeros(7).cos()  # its frames count again


thread = threading.Thread(target=waiting)
thread.start()
assert inside.wait(TIMEOUT)
with capture("run"):
    go.set()
    thread.join()
    in_threads(deep, deep)
run = run_of("run")
assert run.one("cos").line is not None and run.one("cos").phase == "other"
assert run.names.count("clone") >= 2 * 151, run.names.count("clone")
assert {e.phase for e in run.all("clone")} == {"backward"}
nothing_left()

print("ok")
