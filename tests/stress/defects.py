"""What the recorder meets that it cannot handle ends the capture, not the program."""

import functools
import time
import warnings

import torch
from support import calls, capture, in_threads, nothing_left, run_of, work

from opguard.capture import native as mechanism
from opguard.capture import operators

# The table says that a root rank is to be asked for, which this operator's group cannot tell.
lib = torch.library.Library("c10d", "FRAGMENT")
lib.define("stress(Tensor x, int process_group, int root_rank) -> Tensor")
lib.impl("stress", lambda x, group, root: x + 1, "CPU")
operators.C10D_WRITES["stress"] = (("x", "root"),)
broken = torch.ops.c10d.stress


def told(body):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        body()
    return [str(warning.message) for warning in caught]


def defect(name, pause):
    with capture(name):
        torch.ones(3)
        for _ in range(3):
            assert broken(torch.ones(2), 3, 4).tolist() == [2, 2]
            in_threads(lambda: calls(10))
        time.sleep(pause)
        torch.ones(3).sin()


for name, pause in (("late", 0), ("early", 1.2)):
    (message,) = told(lambda name=name, pause=pause: defect(name, pause))
    assert message.startswith("capture stopped, the run stays partial: "), message
    assert "\n" not in message, message
    assert not (work / name / "rank-00000" / "close.json").exists()
    assert "sin" not in run_of(name).names
    nothing_left()

# A Python part of ours fails.
real = mechanism.Native.exported
mechanism.Native.exported = functools.partial(int, "x")


def python():
    with capture("python"):
        torch.ones(2).__dlpack__()
        calls(10)


(message,) = told(python)
assert "a defect in opguard: TypeError" in message, message
mechanism.Native.exported = real
nothing_left()

# Arguments of other libraries that are called as torch's are.
own = torch.library.Library("stress", "DEF")
own.define(
    "odd(Tensor x, int generator, str device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
own.impl("odd", lambda x, generator, device: x + generator, "CPU")


def odd():
    with capture("odd"):
        torch.ops.stress.odd(torch.ones(2), 3, "here")


assert told(odd) == []
assert run_of("odd").names[-1] == "odd"
nothing_left()

print("ok")
