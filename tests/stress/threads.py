"""Training, scripted functions that fork, and large tensors, on four threads."""

import torch
from support import capture, in_threads, nothing_left, run_of


def train():
    net = torch.nn.Linear(4, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(150):
        opt.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        opt.step()


@torch.jit.script
def inner(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = x.sin() + 1
    return x


@torch.jit.script
def outer(x: torch.Tensor) -> torch.Tensor:
    tasks = [torch.jit.fork(inner, x) for _ in range(8)]
    for task in tasks:
        x = x + torch.jit.wait(task)
    return x


def scripted():
    x = torch.ones(3, requires_grad=True)
    for _ in range(5):
        outer(x).sum().backward()


def large():  # over torch's intra-op threads
    x = torch.ones(1 << 19)
    for _ in range(10):
        x = (x * 2).cumsum(0)


torch.set_num_threads(2)
with capture("run"):
    in_threads(train, train, scripted, large)
run = run_of("run")
assert run.names.count("addmm") == 300, run.names.count("addmm")
assert run.names.count("cumsum") == 10
assert run.names.count("sin") >= 5 * 8 * 20
seen = run.events + run.state
assert [e.seq for e in sorted(seen, key=lambda e: e.seq)] == list(range(len(seen)))
nothing_left()

print("ok")
