"""Signal handlers that raise at any moment."""

import random
import signal
import time
import warnings

import torch
from support import capture, nothing_left, run_of


class Mine(Exception):
    pass


def raises(*_):
    raise Mine


net = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def train(steps=200):
    for _ in range(steps):
        opt.zero_grad()
        net(torch.ones(2, 3)).sum().backward()
        opt.step()
        torch.ones(4).__dlpack__()


# What a handler raises reaches the program, wherever it strikes, and capture goes on.
train(2)  # torch's own imports swallow what is raised in them
signal.signal(signal.SIGALRM, raises)
struck = 0
with warnings.catch_warnings():
    warnings.simplefilter("error")
    with capture("alarms"):
        for number in range(150):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + number * 1e-5)
                train()
            except Mine:
                struck += 1
                torch.set_grad_enabled(True)  # it may have come within torch's `no_grad`
        train(2)
        torch.ones(3).cos()
assert struck > 100, struck
assert run_of("alarms").names[-1] == "cos"
nothing_left()

# SIGINT at random moments of short captures: all of it is taken out, each time.
random.seed(0)
signal.signal(signal.SIGALRM, signal.default_int_handler)
warnings.simplefilter("ignore")
began = time.monotonic()
with capture("timed"):
    train(2)
span = time.monotonic() - began
hits = 0
for number in range(40):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + random.random() * span)
        with capture(f"hit-{number}"):
            train(2)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        hits += 1
    nothing_left()
assert hits
with capture("last"):
    torch.ones(2)
assert run_of("last").names == ["ones"]

print("ok")
