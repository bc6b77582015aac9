"""How far a comparison reaches: what the settings of the runs and the policy left out of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from opguard.gate import first_rank
from opguard.model import Run

Opening: TypeAlias = Mapping[str, Any]


def steps_in_words(opening: Opening) -> str:
    """``steps 1 to 2`` where only those were fingerprinted, else nothing."""
    steps = (opening.get("settings") or {}).get("steps")
    if not steps:
        return ""
    first, last = int(steps[0]), int(steps[1]) - 1
    return f"step {first}" if first == last else f"steps {first} to {last}"


def restrictions(baseline: Run, candidate: Run, ignored: int) -> tuple[str, ...]:
    """Sentences that qualify every verdict. ``ignored``: pairs hidden by the policy."""
    return tuple(_restrictions(baseline, candidate, ignored))


def _restrictions(baseline: Run, candidate: Run, ignored: int) -> Iterator[str]:
    sides = [first_rank(run) for run in (baseline, candidate)]
    yield from _of_sides([steps_in_words(side.opening) for side in sides], "fingerprinted")
    collectives = [side.opening.get("mode") == "collectives" for side in sides]
    yield from _of_sides(["communication" * it for it in collectives], "fingerprinted")
    stopped = [bool((side.closing or {}).get("stopped")) for side in sides]
    yield from _of_sides(["what came before --stop-after" * it for it in stopped], "captured")
    if ignored:
        yield "Differences that the policy covers are left out."


def _of_sides(texts: list[str], done: str) -> Iterator[str]:
    """One sentence where both sides say the same, else one that names the sides."""
    baseline, candidate = texts
    if baseline == candidate:
        named = [baseline] if baseline else []
    else:
        named = [
            f"{text} of the {side}"
            for text, side in ((baseline, "baseline"), (candidate, "candidate"))
            if text
        ]
    if named:
        many = len(named) > 1 or named[0].startswith("steps")
        yield f"Only {' and '.join(named)} {'were' if many else 'was'} {done}."


def notes_on_runs(baseline: Run, candidate: Run) -> Iterator[str]:
    """What is odd about comparing just these two runs."""
    a, b = first_rank(baseline).opening, first_rank(candidate).opening
    if os.path.realpath(baseline.path) == os.path.realpath(candidate.path):
        yield "both sides are the same run"
    programs = [os.path.basename(str((side.get("command") or [""])[0])) for side in (a, b)]
    if programs[0] != programs[1]:
        yield f"the two sides ran different programs: {programs[0]} and {programs[1]}"
    if steps_in_words(a) != steps_in_words(b):
        yield "the two sides were captured with different --steps: " + " and ".join(
            f"{side} {steps_in_words(opening) or 'all steps'}"
            for side, opening in (("baseline", a), ("candidate", b))
        )
    modes = a.get("mode"), b.get("mode")
    if modes[0] != modes[1]:
        yield f"the two sides were captured in different modes: {modes[0]} and {modes[1]}"
