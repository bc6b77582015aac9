"""The classes of a divergence in plain words: what it means, and what to do next."""

from __future__ import annotations

from typing import Final

from opguard.report.result import Environment

EXPLANATIONS: Final = {
    "raised": (
        "The operator raised an exception on one side and returned on the other.",
        "Read the traceback of the run that raised, and compare shapes and arguments there.",
    ),
    "uninitialised": (
        "The program reads memory that nothing wrote, so its result depends on chance.",
        "Look for torch.empty, new_empty or resize_ whose elements are not all written first.",
    ),
    "reordered": (
        "Operators that write the same memory ran in another order.",
        "Compare the order of the in-place calls at the lines shown.",
    ),
    "argument": (
        "The operator was called with another argument.",
        "Compare the argument lists below with the call at the line shown.",
    ),
    "source": (
        "It read data that no captured operator produced, and those bytes differ: a batch, an "
        "initial weight, a constant, or memory written from outside PyTorch.",
        "Check data loading, seeds and checkpoints, and writes through NumPy or raw pointers.",
    ),
    "structural": (
        "It read the result of operators that ran on one side only.",
        "Look at the operators listed as run on one side only: that code differs.",
    ),
    "rewired": (
        "It read another tensor than its counterpart did; the bytes it should have read exist.",
        "Check which variable is passed here: a stale copy, a swapped argument, an alias.",
    ),
    "overwritten": (
        "The tensor that it read agreed when it was produced, no captured operator wrote to it "
        "since, and yet its bytes differ now.",
        "Look for writes that bypass PyTorch: NumPy views, data_ptr, other threads, extensions.",
    ),
    "random": (
        "The state of the random number generator differs before the call.",
        "Check seeds, and whether one side draws more random numbers earlier on.",
    ),
    "origin": (
        "Inputs, arguments and random state agree, and the result differs: the operator itself "
        "computed something else.",
        "Look at what picks its code: thread count, library release, device, memory layout, "
        "determinism settings, or the implementation if it is your own.",
    ),
    "origin?": (
        "As far as is known its inputs agree, and the result differs; but some inputs were not "
        "read again just before the call.",
        "Run both sides again with --mode full, which reads every input.",
    ),
    "unexplained": (
        "The result differs, and nothing that was captured explains why.",
        "Run both sides again with --mode full, which reads every input.",
    ),
}  # fmt: skip
"""Class to (meaning, advice). The classes that only carry a difference on have no entry."""


def explain(class_name: str) -> tuple[str, str]:
    """Meaning and advice of a class, empty where there is nothing to say."""
    return EXPLANATIONS.get(class_name, ("", ""))


_THREADS: Final = frozenset({"intra_op_threads", "OMP_NUM_THREADS", "MKL_NUM_THREADS"})
_MOST_FACTS: Final = 3


def environment_first(class_name: str, environment: Environment) -> str:
    """What to look at before the operator itself, where the environments differ; else empty.

    Equal inputs that give another result are most often that.
    """
    if class_name not in ("origin", "origin?") or not environment.differs:
        return ""
    facts = [
        f"{name} {environment.baseline.get(name, 'not set')} against "
        f"{environment.candidate.get(name, 'not set')}"
        for name in environment.differs[:_MOST_FACTS]
    ]
    left = len(environment.differs) - len(facts)
    if left:
        facts.append(f"{left} more")
    threads = not _THREADS.isdisjoint(environment.differs)
    hint = "thread counts change bits" if threads else "that alone may change bits"
    return f"The two runs ran in different environments: {', '.join(facts)}: {hint}."
