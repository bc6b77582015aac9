"""A capture that is opened while other threads work."""

import threading

import torch
from support import TIMEOUT, capture, in_threads, nothing_left, run_of, work

import opguard

with capture("outer"):
    for _ in range(2):
        try:
            with capture("inner"):
                raise AssertionError("not reached")
        except opguard.errors.UsageError as error:
            assert "already open" in str(error)
    torch.ones(2)
assert run_of("outer").names == ["ones"]
assert not (work / "inner").exists()

# Several threads at once: one wins, and what the others began is undone.
together = threading.Barrier(4)
done = threading.Barrier(4)
results = []


def race(name):
    together.wait(TIMEOUT)
    try:
        with capture(name):
            torch.ones(2)
            done.wait(TIMEOUT)
        results.append(name)
    except opguard.errors.UsageError:
        results.append(None)
        done.wait(TIMEOUT)


in_threads(*[lambda n=n: race(f"race-{n}") for n in range(4)])
assert sorted(map(bool, results)) == [False, False, False, True], results
nothing_left()

# A folder that cannot be used leaves nothing behind.
(work / "taken").write_text("")
for _ in range(2):
    try:
        with capture("taken"):
            raise AssertionError("not reached")
    except opguard.errors.OpguardError:
        pass
nothing_left()

print("ok")
