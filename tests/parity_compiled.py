"""Short programs with compiled graphs."""

from __future__ import annotations

import torch
from torch import nn

PROGRAMS = {}


def program(run):
    """Add ``run`` to ``PROGRAMS``; it compiles anew each time."""

    def fresh():
        torch._dynamo.reset()
        run()

    PROGRAMS[run.__name__] = fresh
    return fresh


@program
def training():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    fast = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        fast(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        fast(torch.randn(3, 4))


@program
def graph_breaks():
    @torch.compile
    def f(x, n):
        y = x.sin() * n
        torch._dynamo.graph_break()
        return y.cos().sum(), y

    for _ in range(2):
        f(torch.randn(5), 2)[0].item()


@program
def views_and_writes():
    @torch.compile
    def view(x):
        return x.t()

    @torch.compile
    def write(x):
        x.add_(1)
        return x.t()

    x = torch.randn(3, 4)
    for _ in range(2):
        view(x).sum()
        write(x).sum()
        x.sum()


@program
def dynamic_shapes():
    @torch.compile(dynamic=True)
    def f(x, n):
        return x.sin() * x.shape[0], x[:n].sum()

    for n in (3, 5):
        a, b = f(torch.randn(n, 2, requires_grad=True), n - 1)
        (a.sum() + b).backward()


@program
def other_backends():
    def f(x):
        return (x.sin() + 1).sum()

    for backend in ("eager", "aot_eager"):
        torch.compile(f, backend=backend)(torch.randn(5, requires_grad=True)).backward()
