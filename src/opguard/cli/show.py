"""``opguard show``: what a run holds, for people."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import numpy as np

from opguard.cli.flags import debug_option
from opguard.cli.output import terminal_width, wants_color, write
from opguard.model import I64, REASON_SHIFT, EventFlag, RankEvents, Reason, RecordFlag, Run
from opguard.report.scope import steps_in_words
from opguard.report.text import INTERRUPT, THREADS_BEFORE, clean, plural, render, section
from opguard.store.run_reader import load_run

if TYPE_CHECKING:
    from rich.console import RenderableType

TOP: Final = 10


@click.command("show")
@click.argument("run", type=click.Path(path_type=Path))
@debug_option
def command(run: Path) -> int:
    """Tell what a run holds: environment, ranks, counts, coverage, busiest operators."""
    text = render(_parts(load_run(run)), terminal_width(), wants_color(os.environ))
    write(text.lstrip("\n"))
    return 0


def _parts(run: Run) -> Iterator[RenderableType]:
    ranks = [rank for _, rank in sorted(run.ranks.items())]
    yield from section("Run", _identity(run, ranks))
    yield from section("Ranks", ((f"rank {rank.rank}", _rank(rank)) for rank in ranks))
    yield from section("Partial", _partial(ranks))
    if ranks:
        yield from section("Environment", _flat(ranks[0].opening.get("environment")))
    for rank in ranks:
        rows = [*_tensors(rank), *_coverage(rank)]
        yield from section(f"Coverage of rank {rank.rank}", rows)
    for title, part in (("Operators", "operator"), ("Modules", "module"), ("Phases", "phase")):
        yield from section(title, _busiest(ranks, part))


def _identity(run: Run, ranks: list[RankEvents]) -> Iterator[tuple[str, str]]:
    yield "folder", clean(run.path)
    yield "id", clean(run.run_id)
    if ranks:
        opening = ranks[0].opening
        command = opening.get("command")
        words = [str(word) for word in command] if isinstance(command, list) else [str(command)]
        yield "command", clean(shlex.join(words))
        yield "mode", clean(str(opening.get("mode")))
        steps = steps_in_words(opening)
        if steps:
            yield "fingerprinted", f"only {steps}"
        if opening.get("mode") == "collectives":
            yield "fingerprinted", "only communication"
        yield "mechanism", clean(str(opening.get("mechanism")))
    missing = [rank for rank in range(run.world_size) if rank not in run.ranks][:TOP]
    yield "ranks", f"{len(ranks)} of {run.world_size}"
    if missing:
        yield "missing", ", ".join(map(str, missing))


def _rank(rank: RankEvents) -> str:
    calls = _calls(rank)
    steps = rank.step[calls]
    parts = [
        plural(len(calls), "operator call"),
        f"{rank.event_count - len(calls):,} of final state",
        plural(rank.record_count, "tensor record"),
        f"steps {steps.min()} to {steps.max()}" if len(calls) else "no step",
        plural(len(np.unique(rank.thread[calls])), "thread"),
        _ending(rank),
    ]
    return ", ".join(parts)


def _calls(rank: RankEvents) -> I64:
    """Positions of the events that are operator calls, and no entries of the final state."""
    return np.flatnonzero((rank.flags & EventFlag.STATE) == 0)


def _ending(rank: RankEvents) -> str:
    if rank.closing is None:
        return "partial: never closed"
    exception = str(rank.closing.get("exception") or "")
    if exception not in ("", INTERRUPT):
        return f"partial: it ended with {clean(exception)}"
    if rank.closing.get("interrupted"):
        return "partial: interrupted"
    return "ended by --stop-after" if rank.closing.get("stopped") else "complete"


def _partial(ranks: list[RankEvents]) -> Iterator[tuple[str, str]]:
    for rank in ranks:
        for problem in rank.problems:
            yield f"rank {rank.rank}", clean(problem)


def _tensors(rank: RankEvents) -> Iterator[tuple[str, str]]:
    """Tensor records that no comparison can use."""
    void = int(np.count_nonzero(rank.record_flags & RecordFlag.VOID))
    if void:
        yield "unwritten memory", plural(void, "tensor record")
    reasons = np.bincount(rank.record_flags >> REASON_SHIFT, minlength=len(Reason))
    for reason in Reason:
        if reason is not Reason.PRESENT and reasons[reason]:
            name = reason.name.lower().replace("_", " ")
            yield f"no fingerprint: {name}", plural(int(reasons[reason]), "tensor record")


def _coverage(rank: RankEvents) -> Iterator[tuple[str, str]]:
    coverage = dict((rank.closing or {}).get("coverage") or {})
    threads = int(coverage.pop("unarmed_threads", 0) or 0)
    if threads:
        yield "threads not captured", f"{threads:,}, {THREADS_BEFORE}"
    yield from _flat(coverage)


def _flat(facts: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Rows of a JSON object, nested names joined by dots; what is empty or zero is left out."""
    if not isinstance(facts, Mapping):
        return
    for name, value in sorted(facts.items()):
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value not in (None, 0, "", []):
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield clean(prefix + str(name), 80), clean(text)


def _busiest(ranks: list[RankEvents], part: str) -> Iterator[tuple[str, str]]:
    """Calls by one part of their boundary, most calls first."""
    names = Counter[str]()
    for rank in ranks:
        calls = np.bincount(rank.boundary[_calls(rank)], minlength=len(rank.boundaries))
        for boundary, count in zip(rank.boundaries, calls.tolist(), strict=True):
            if count:
                names[getattr(boundary, part) or "(none)"] += count
    ranked = sorted(names.items(), key=lambda item: (-item[1], item[0]))
    for name, count in ranked[:TOP]:
        yield f"{count:,}", clean(name)
    if len(ranked) > TOP:
        rest = sum(count for _, count in ranked[TOP:])
        yield f"{rest:,}", f"in {len(ranked) - TOP} more"
