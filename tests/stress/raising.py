"""Operators that raise, at each place where they can."""

import torch
from support import capture, in_threads, nothing_left, run_of


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad.view(7, 9)


@torch.library.custom_op("stress::fails", mutates_args=())
def fails(x: torch.Tensor) -> torch.Tensor:
    x.sin()
    raise KeyError("mine")


def attempt(call, error):
    try:
        call()
    except error:
        return
    raise AssertionError("nothing was raised")


def forward():
    x = torch.ones(4)
    for _ in range(50):
        attempt(lambda: x.view(7, 9), RuntimeError)
        attempt(lambda: torch.mm(x, x), RuntimeError)
        attempt(lambda: fails(x), KeyError)


def backward():
    for _ in range(50):
        x = torch.ones(4, requires_grad=True)
        attempt(lambda: Fails.apply(x).sum().backward(), RuntimeError)


with capture("run"):
    in_threads(forward, backward, forward)
    torch.ones(3).cos()
run = run_of("run")
assert sum(e.raised for e in run.all("mm")) == 100
assert sum(e.raised for e in run.all("fails")) == 100
assert sum(e.raised for e in run.all("view") if e.phase == "backward") == 50
assert not run.one("cos").raised
assert "sin" not in run.names  # it is part of the operator that failed
nothing_left()

print("ok")
