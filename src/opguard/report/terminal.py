"""A comparison as text for a terminal. Pure: the same result gives the same text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from opguard.model import STATE_OPERATOR
from opguard.report.explain import environment_first, explain
from opguard.report.result import (
    Finding,
    Place,
    Program,
    Result,
    StateName,
    TensorDifference,
)
from opguard.report.text import (
    INTERRUPT,
    THREADS_BEFORE,
    clean,
    clean_path,
    grid,
    plural,
    render,
    section,
)

VERDICT_STYLES: Final = {
    "identical": "bold green",
    "diverged": "bold red",
    "uncomparable": "bold yellow",
    "inconclusive": "bold yellow",
}
MAX_TENSORS: Final = 6
MAX_ROOTS: Final = 8
MAX_NAMES: Final = 8
MAX_UNPAIRED: Final = 5
REGIONS: Final = 8
"""Equal runs of words of a large tensor that have fingerprints of their own."""


def render_result(result: Result, width: int = 80, color: bool = False) -> str:
    """The report as text; ``width`` in columns, ANSI colours only where ``color``."""
    return render(_parts(result), width, color)


def _parts(result: Result) -> Iterator[RenderableType]:
    verdict = Text(f"opguard: {result.verdict}", style=VERDICT_STYLES[result.verdict])
    yield verdict.append(f" ({result.reason_code}, exit code {result.exit_code})", style="default")
    yield Text(clean(result.reason))
    if result.pivot is not None:
        yield from _pivot(
            result.pivot, environment_first(result.pivot.class_name, result.environment)
        )
    yield from section("Agreed just before", _agreed_before(result))
    yield from section("Divergences that start on their own", _roots(result))
    yield from section("Final state", _final_state(result))
    yield from section("Compared", _compared(result))
    yield from section("Ran on one side only", _unpaired(result))
    yield from section("Not covered", _not_covered(result))
    yield from section("Environment differs", _environment(result))
    yield from section("Runs", _programs(result))
    yield from section("Notes", (("", clean(note)) for note in result.notes))
    yield from _commands(result)


def _pivot(pivot: Finding, lead: str) -> Iterator[RenderableType]:
    yield Text()
    if pivot.op == STATE_OPERATOR:
        yield Text("no operator that was compared diverged; the final state differs")
    else:
        # The line that scripts look for: never wrapped, whatever the width.
        line = Text("first divergent op: ", style="bold", no_wrap=True)
        yield line.append(clean(pivot.op), style="bold red")
    yield grid([*_places(pivot), *_identity(pivot)])
    meaning, advice = explain(pivot.class_name)
    texts = [clean(lead, 2000), meaning, advice]
    yield from section("What it means", [("", text) for text in texts if text])
    yield from section("Arguments", _arguments(pivot))
    yield from section("Results that differ", _tensors(pivot.tensors))
    yield from section("Inputs that differ", _tensors(pivot.inputs))
    yield from section(
        "Ran on one side only, and leads here",
        (
            (gap.side, f"{clean(gap.op)} {_in_module(gap.module)}{_where(gap.place)}".rstrip())
            for gap in pivot.gaps
        ),
    )


def _places(pivot: Finding) -> Iterator[tuple[str, str]]:
    """The user's own lines, once where both sides name the same."""
    baseline, candidate = (_where(place) for place in (pivot.baseline, pivot.candidate))
    if baseline == candidate:
        yield "line", candidate or "not known"
    else:
        yield "baseline line", baseline or "not known"
        yield "candidate line", candidate or "not known"


def _where(place: Place | None) -> str:
    if place is None or not place.file:
        return ""
    function = f" in {clean(place.function)}" if place.function else ""
    return f"{clean_path(place.file)}:{place.line}{function}"


def _in_module(module: str) -> str:
    return f"in {clean(module)} " if module else ""


def _identity(pivot: Finding) -> Iterator[tuple[str, str]]:
    if pivot.module:
        yield "module", clean(pivot.module)
    yield "phase", clean(pivot.phase)
    yield "step", f"{pivot.step}, rank {pivot.rank}"
    if pivot.op != STATE_OPERATOR:
        yield "call", f"{pivot.occurrence + 1:,} of this operator, counted in the candidate"
    if pivot.slots:
        yield "result", ", ".join(clean(slot) for slot in pivot.slots)
    yield "class", clean(pivot.class_name) or "final state"
    if pivot.note:
        yield "note", clean(pivot.note)


def _arguments(pivot: Finding) -> Iterator[tuple[str, str]]:
    sides = pivot.arguments
    if sides.baseline == sides.candidate:
        if sides.baseline:
            yield "both", clean(sides.baseline)
    else:
        yield "baseline", clean(sides.baseline) or "none"
        yield "candidate", clean(sides.candidate) or "none"


def _tensors(tensors: Sequence[TensorDifference]) -> Iterator[tuple[str, str]]:
    for tensor in tensors[:MAX_TENSORS]:
        yield clean(tensor.slot), _tensor(tensor)
        if tensor.values is not None:
            yield "  baseline", clean(tensor.values[0])
            yield "  candidate", clean(tensor.values[1])
    if len(tensors) > MAX_TENSORS:
        yield "", f"and {len(tensors) - MAX_TENSORS} more"


def _tensor(tensor: TensorDifference) -> str:
    now = f"{clean(tensor.dtype)}{_shape(tensor.shape)}"
    before = f"{clean(tensor.baseline_dtype)}{_shape(tensor.baseline_shape)}"
    text = now
    if tensor.baseline_dtype and before != now:
        text = f"{before} in the baseline, {now} in the candidate"
    if None in tensor.mix64:
        return f"{text}, only in the {'candidate' if tensor.mix64[0] is None else 'baseline'}"
    if len(tensor.regions_differ) == REGIONS:
        return f"{text}, all over"
    if tensor.regions_differ:
        parts = ", ".join(str(region + 1) for region in tensor.regions_differ)
        return f"{text}, in part {parts} of {REGIONS} equal parts"
    return text


def _shape(shape: Sequence[int]) -> str:
    return "[" + ",".join(str(size) for size in shape) + "]"


def _agreed_before(result: Result) -> Iterator[tuple[str, str]]:
    for pair in result.agreed_before:
        place = f"{clean_path(pair.file)}:{pair.line}" if pair.file else ""
        yield f"step {pair.step}", f"{clean(pair.op)} {_in_module(pair.module)}{place}".rstrip()


def _roots(result: Result) -> Iterator[tuple[str, str]]:
    """Nothing when the pivot is the only one: it has been shown."""
    if len(result.roots) < 2:
        return
    for root in result.roots[:MAX_ROOTS]:
        times = f" ({root.count:,} times)" if root.count > 1 else ""
        place = _where(root.candidate or root.baseline)
        text = f"{clean(root.op)} {_in_module(root.module)}{place}".rstrip()
        yield clean(root.class_name), f"{text}, step {root.step}, rank {root.rank}{times}"
    if len(result.roots) > MAX_ROOTS:
        yield "", f"and {len(result.roots) - MAX_ROOTS} more"


def _final_state(result: Result) -> Iterator[tuple[str, str]]:
    state = result.final_state
    if state.compared or state.differing or state.unpaired or state.not_compared:
        yield "compared", f"{state.compared:,}, of which {state.differing:,} differ"
    if state.differing_entries:
        yield "differing", _names(state.differing_entries, state.differing)
    if state.unpaired:
        yield "no partner", _names(state.unpaired_entries, state.unpaired)
    by_reason: dict[str, dict[str, StateName]] = {}
    for entry in state.not_compared_entries:  # a generator of two ranks is named once
        by_reason.setdefault(entry.why, {})[entry.candidate or entry.baseline] = entry
    for why, named in by_reason.items():
        reason = f": {clean(why)}" if why else ""
        yield "not compared", _names(tuple(named.values()), len(named)) + reason
    left = state.not_compared - len(state.not_compared_entries)
    if left > 0:
        yield "not compared", f"and {left:,} more"


def _names(entries: Sequence[StateName], total: int) -> str:
    shown = [clean(entry.candidate or entry.baseline, 120) for entry in entries[:MAX_NAMES]]
    left = total - len(shown)
    return ", ".join(shown) + (f" and {left:,} more" if left > 0 else "")


def _compared(result: Result) -> Iterator[tuple[str, str]]:
    counts, prefix = result.counts, result.certified_prefix
    first, second = result.mechanism.baseline, result.mechanism.candidate
    if first or second:
        both = first if first == second else f"{first} (baseline), {second} (candidate)"
        yield "captured by", clean(both)
    yield "operators", f"{counts.baseline_events:,} baseline, {counts.candidate_events:,} candidate"
    yield "paired", f"{counts.paired:,}, of which {counts.agreeing:,} agree"
    incomplete = "" if prefix.complete else ", but parts of them could not be compared"
    yield "certified prefix", plural(prefix.pairs, "pair") + " without a difference" + incomplete
    for label, count in (
        ("paired out of order", counts.moved),
        ("only in baseline", counts.gaps_baseline),
        ("only in candidate", counts.gaps_candidate),
        ("agree, but read different inputs", counts.differing_inputs),
        ("hidden by policy", counts.ignored),
    ):
        if count:
            yield label, f"{count:,}"


def _unpaired(result: Result) -> Iterator[tuple[str, str]]:
    for side, operators in (
        ("baseline", result.unpaired.baseline),
        ("candidate", result.unpaired.candidate),
    ):
        for operator in operators[:MAX_UNPAIRED]:
            times = f"({operator.count:,} times)" if operator.count > 1 else ""
            yield side, f"{clean(operator.op)} {_in_module(operator.module)}{times}".rstrip()
        if len(operators) > MAX_UNPAIRED:
            yield side, "and others"


def _not_covered(result: Result) -> Iterator[tuple[str, str]]:
    coverage, counts = result.coverage, result.counts
    for label, count in (
        ("pairs with nothing to compare", counts.not_compared),
        ("pairs with unwritten memory", counts.void),
        ("unverified in-place writes", counts.unverified),
        *((f"tensors {clean(why, 40)}", n) for why, n in coverage.unfingerprinted.items()),
        ("values of unknown origin", coverage.foreign_values),
        ("lost events", coverage.lost_events),
        ("processes not captured", coverage.uncaptured_processes),
        ("ranks not captured", coverage.uncaptured_ranks),
    ):
        if count:
            yield label, f"{count:,}"
    if coverage.unarmed_threads:
        yield "threads not captured", f"{coverage.unarmed_threads:,}, {THREADS_BEFORE}"
    if coverage.opaque_regions:
        regions = [clean(name, 120) for name in coverage.opaque_regions[:MAX_NAMES]]
        left = len(coverage.opaque_regions) - len(regions)
        yield "opaque regions", ", ".join(regions) + (f" and {left} more" if left else "")
    kernels = coverage.kernels
    if kernels.baseline is None and kernels.candidate is None:
        yield "device kernels", "not observed"


def _environment(result: Result) -> Iterator[tuple[str, str]]:
    environment = result.environment
    for name in environment.differs:
        before, now = (
            clean(str(side.get(name, "not set")), 120)
            for side in (environment.baseline, environment.candidate)
        )
        yield clean(name, 60), f"{before} → {now}"


def _programs(result: Result) -> Iterator[tuple[str, str]]:
    """Only what a reader has to know of a run that did not end as it should."""
    programs = result.programs
    for side, program in (("baseline", programs.baseline), ("candidate", programs.candidate)):
        for line in _ending(program):
            yield side, line


def _ending(program: Program) -> Iterator[str]:
    if program.unclosed_ranks:
        ranks = ", ".join(str(rank) for rank in program.unclosed_ranks)
        yield f"partial: rank {ranks} was not closed; only what had been stored was compared"
    if program.stopped:
        yield "ended by --stop-after; what follows was not captured"
    if program.exception not in (None, INTERRUPT):
        yield f"partial: it ended with {clean(program.exception)}"
    elif program.interrupted:
        yield "partial: the program was interrupted"
    elif program.exit_code:
        yield f"the program exited with code {program.exit_code}"
    for problem in program.problems:
        yield clean(problem)


def _commands(result: Result) -> Iterator[RenderableType]:
    """Never wrapped: they are there to be copied."""
    commands = result.commands
    for label, line in (("reproduce", commands.reproduce), ("accept", commands.accept)):
        if line:
            yield Text(f"\n{label}: {clean(line, 2000)}", no_wrap=True)
