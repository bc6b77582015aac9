"""Reason codes as sentences for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from opguard.report.result import Finding

_SENTENCES: Final[Mapping[str, str]] = {
    "IDENTICAL": "Everything that was compared is identical, byte by byte.",
    "PIVOT": "The runs part at {op}.",
    "STATE": "No operator that was compared differs, but the final state differs, first in {name}.",
    "NO_BASELINE": "There is no baseline to compare with.",
    "ENVIRONMENT": "The runs come from environments whose results are not comparable: {differs}.",
    "NUMERICS": "The same operators give other bits in the two environments: {differs}.",
    "RANKS": "The runs do not have the same ranks.",
    "PARTIAL": (
        "A run ended before it was closed, or its program did not reach its own end, so what came "
        "after is not known."
    ),
    "LOST": "Events were lost during capture, or part of the final state could not be read.",
    "NOTHING_COMPARED": "Nothing could be compared.",
    "COVERAGE": "Too few of the events have a counterpart on the other side.",
    "TRAILING_GAP": "One run goes on where the other has ended.",
    "UNVERIFIED_WRITE": (
        "An operator that only one run has wrote into memory that both use, and nothing that "
        "agrees read it afterwards."
    ),
    "UNPAIRED_STATE": "Part of the final state has no counterpart on the other side.",
    "UNCAPTURED_RANK": "A rank ran without being captured.",
    "UNINITIALISED": "The program reads memory that nothing wrote; what differs stems from that.",
    "UNEXPLAINED": "Something differs for no reason that was captured.",
    "STRUCTURE": "The runs do not have the same events, and the policy demands it.",
    "BASELINE_NOT_DETERMINISTIC": "The baseline differs from its own repetition.",
    "NOT_DETERMINISTIC": "The same revision gave two different runs.",
}


def sentence(code: str, pivot: Finding | None, differs: tuple[str, ...]) -> str:
    """What ``code`` means here."""
    place = pivot.candidate if pivot else None
    op = pivot.op if pivot else ""
    if place and place.file:
        op += f" ({PurePath(place.file).name}:{place.line})"
    return _SENTENCES[code].format(
        op=op, name=(pivot.module if pivot else ""), differs=", ".join(differs)
    )
