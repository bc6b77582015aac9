"""Compares what the two mechanisms made of one program, event by event.

Everything has to be the same except what a row of ``DEVIATIONS`` allows: a mode is not neutral, so
that PyTorch itself takes other paths under one (``docs/deviations.md``). What changes bits, or a
whole backward (``cumprod``, ``ctc_loss``, ``householder_product``), is not among them: programs
that are compared leave it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from opguard.model import EventFlag, RankEvents, RecordFlag
from parity_rows import Deviation, Event, Record, Stack, events_of

IN_PLACE: Final = Deviation(
    "in place",
    "where gradients meet, and in formulas of composite operators, PyTorch writes in place only "
    "where no mode could see it",
)
CLONE: Final = Deviation(
    "clone",
    "above a mode, and so nested in the operator for the recorder, PyTorch clones what an in-place "
    "operator is about to overwrite and backward needs, and what carries a conj or neg bit that a "
    "kernel does not know; a hook on saved tensors may do so, too; AccumulateGrad takes a sparse "
    "gradient over only where nobody else refers to its parts",
)
STOPPED: Final = Deviation(
    "stopped",
    "a call that autograd's layer refuses, or that a hook on saved tensors ends, as checkpoint "
    "does, raised; a mode lies below and sees no call, or one that returned",
)
KERNEL_FRAMES: Final = Deviation(
    "frames",
    "autograd kernels of custom operators are written in Python and stand on the stack; a compiled "
    "graph is called a few of PyTorch's frames further in",
)
NEXT_CALL: Final = Deviation(
    "next call",
    "the node of a write into a view is made once the operator has returned: its backward carries "
    "module and line of the next call, since a mode is told of no return",
)
CLONES: Final = "aten.clone.default"
_ATEN: Final = "aten."


def _stretch(name: str, reason: str, native: str, dispatch: str) -> Deviation:
    sides = [tuple(_ATEN + op for op in side.split()) for side in (native, dispatch)]
    return Deviation(name, reason, *sides)


STRETCHES: Final = (
    _stretch(
        "prod",
        "gradient by products from both ends instead of a division by the input",
        "eq.Scalar nonzero.default div.Tensor mul.Tensor",
        "ones.default cat.default cumprod.default flip.default cat.default cumprod.default "
        "flip.default mul.Tensor mul.Tensor",
    ),
    _stretch(
        "values of max, sort, topk and their like",
        "their backward scatters into a new tensor where a mode could see it",
        "zeros.default scatter_.src",
        "new_zeros.default scatter.src",
    ),
    _stretch(
        "max and median of all elements",
        "their backward branches on a value only where no mode could see it",
        "isnan.default _local_scalar_dense.default eq.Tensor new_zeros.default sum.default "
        "div.Tensor masked_fill_.Tensor",
        "isnan.default isnan.default logical_and.default eq.Tensor logical_or_.default sum.default "
        "div.Tensor mul.Tensor",
    ),
    _stretch(
        "index",
        "its backward writes in place only where no mode could see it",
        "_index_put_impl_.default",
        "index_put.default",
    ),
    _stretch(
        "masked_fill",
        "the gradient of the value selects elements, whose number depends on data",
        "masked_select.default sum.default",
        "scalar_tensor.default where.self sum.default",
    ),
    _stretch(
        "zero tensors",
        "an operator that knows tensors of zeros without memory turns into others below a mode",
        "mul.Tensor mul.Tensor add.Tensor",
        "_efficientzerotensor.default mul.Tensor _to_copy.default",
    ),
    _stretch(
        "tangents",
        "forward-mode gradients are computed inside the operator",
        "",
        "cos.default mul.Tensor is_same_size.default _has_same_storage_numel.default",
    ),
    _stretch(
        "checks of tangents",
        "the same",
        "",
        "is_same_size.default _has_same_storage_numel.default",
    ),
    _stretch(
        "conj",
        "where a kernel knows no conj bit, what was written in place is copied back",
        "",
        "copy_.default",
    ),
    Deviation(
        "cond",
        "an operator of its own for a mode; the recorder sees what the branch calls",
        ("aten._local_scalar_dense.default", "aten.sin.default"),
        ("higher_order.cond",),
    ),
)
"""Longer ones first, where one begins like another."""
DEVIATIONS: Final = (IN_PLACE, CLONE, STOPPED, KERNEL_FRAMES, NEXT_CALL, *STRETCHES)

_LOOK_AHEAD: Final = max(len(side) for row in STRETCHES for side in (row.native, row.dispatch))
_ENDINGS: Final = ("steps", "seeded", "exit_code", "exception", "interrupted", "stopped")
_KERNEL_FILES: Final = (
    "torch/_library/autograd.py", "torch/_library/custom_ops.py", "torch/_ops.py",
    "torch/autograd/function.py",
)  # fmt: skip


class Parity:
    """Two ranks of one program side by side; ``differences`` are those that no row allows."""

    def __init__(self, native: RankEvents, dispatch: RankEvents) -> None:
        self.differences: list[str] = []
        self.used: set[Deviation] = set()
        self._partners: dict[int, int] = {}
        """Record of ``dispatch`` that stands for a record of ``native``."""
        self._extra: dict[int, tuple[int, ...]] = {}
        """Outputs that ``native`` has no event for, and the producers of what they are clones of:
        who reads one has these there, or none."""
        self._extra_reads = 0
        self._after_clones: set[int] = set()
        """Events of ``dispatch`` that read what an extra clone has read first."""
        left, right = list(events_of(native)), list(events_of(dispatch))
        self._writers = {_place(event) for event in left if event.writes_in_place}
        pairs: list[tuple[Event, Event]] = []
        for key in sorted({_stream(event) for event in left + right}):
            mine, its = ([e for e in side if _stream(e) == key] for side in (left, right))
            pairs += self._pair(mine, its)
        for one, other in pairs:
            self._compare(one, other)
        self._compare_ends(native, dispatch)

    # Which events stand for each other

    def _pair(self, left: list[Event], right: list[Event]) -> Iterator[tuple[Event, Event]]:
        at, to = 0, 0
        while at < len(left) or to < len(right):
            mine, its = left[at : at + _LOOK_AHEAD], right[to : to + _LOOK_AHEAD]
            found = self._allowed(mine, its)
            if found is None:
                self._say("events", [e.op for e in mine], [e.op for e in its], (mine or its)[:1])
                return
            row, taken, given = found
            if row is not None:
                self.used.add(row)
            if row not in STRETCHES and taken == given == 1:
                yield mine[0], its[0]
            if taken and given:
                self._equal("place", _place(mine[0])[0], _place(its[0])[0], mine[:1])
                self._join(mine[taken - 1], its[given - 1])
            else:
                self._note_extra(its[:given])
            at, to = at + taken, to + given

    def _allowed(
        self, left: list[Event], right: list[Event]
    ) -> tuple[Deviation | None, int, int] | None:
        """The next events that stand for each other, as numbers, and the row that allows it."""
        one, other = left[0] if left else None, right[0] if right else None
        for row in STRETCHES:
            if row.native and _begins(left, row.native) and _begins(right, row.dispatch):
                return row, len(row.native), len(row.dispatch)
        if one and other and (one.op, one.phase) == (other.op, other.phase):
            stopped = one.raised and not other.raised
            return STOPPED if stopped else None, 1, 1
        if one and other and _is_in_place_of(one, other):
            return IN_PLACE, 1, 1
        if one and one.raised:
            return STOPPED, 1, 0
        if _begins(right, (CLONES,)):
            self._after_clones.add(right[0].seq + 1)
            return CLONE, 0, 1
        for row in STRETCHES:
            if not row.native and _begins(right, row.dispatch):
                return row, 0, len(row.dispatch)
        return None

    def _note_extra(self, events: list[Event]) -> None:
        for event in events:
            read = [producer for r in event.records if not r.is_output for producer in r.producers]
            copied = tuple(read) if event.op == CLONES else ()
            self._extra.update(dict.fromkeys(event.outputs(), copied))

    def _join(self, one: Event, other: Event) -> None:
        if one.raised and not other.raised:
            self._note_extra([other])
        self._partners.update(zip(one.inputs(), other.inputs(), strict=False))
        self._partners.update(zip(one.outputs(), other.outputs(), strict=False))

    # What they hold

    def _compare(self, one: Event, other: Event) -> None:
        in_place, stopped = one.op != other.op, one.raised and not other.raised
        for key, value in one.values.items():
            self._equal(key, value, other.values[key], (one, other))
        self._compare_places(one, other)
        if not stopped:
            self._equal("flags", one.flags, other.flags, (one, other))
        its = [r for r in other.records if not (stopped and r.is_output)]
        slots = [[_slot(r, in_place) for r in side] for side in (one.records, its)]
        if self._equal("records", *slots, (one, other)):
            for mine, partner in zip(one.records, its, strict=True):
                self._compare_records(mine, partner, (one, other), in_place and mine.is_output)

    def _compare_places(self, one: Event, other: Event) -> None:
        if _place(one) == _place(other):
            return
        if one.phase == "backward" and _place(one) in self._writers:
            self.used.add(NEXT_CALL)
            return
        self._equal("module", one.module, other.module, (one, other))
        if one.stack != other.stack:
            self.used.add(KERNEL_FRAMES)
            stacks = [_without_kernels(event) for event in (one, other)]
            depth = min(map(len, stacks))  # 24 frames are kept, with the kernel's or without
            self._equal("stack", stacks[0][:depth], stacks[1][:depth], (one, other))

    def _compare_records(
        self, mine: Record, its: Record, events: tuple[Event, Event], written: bool
    ) -> None:
        produced = tuple(self._partners.get(record, -1) for record in mine.producers)
        extra = self._extra.keys() & set(its.producers)
        values, its_values = dict(mine.values), dict(its.values)
        if extra:
            sources = tuple(source for record in extra for source in self._extra[record])
            self._equal(f"{mine.slot} producers", produced, sources if produced else (), events)
            fresh = mine.values["flags"] & RecordFlag.FRESH
            self._extra_reads += bool(fresh and not produced and events[0].values["step"])
        elif not written:
            self._equal(f"{mine.slot} producers", produced, its.producers, events)
        if extra or (events[1].seq in self._after_clones and not its.is_output):
            for side in (values, its_values):  # read by the clone, or where it would have been
                del side["flags"], side["small"], side["strides"]
        for key, value in values.items():
            self._equal(f"{mine.slot} {key}", value, its_values[key], events)

    def _compare_ends(self, native: RankEvents, dispatch: RankEvents) -> None:
        ends = [dict(side.closing or {}) for side in (native, dispatch)]
        for end in ends:
            end.pop("written")  # chunks, and strings that only one side needs on its way
        covered = [dict(end.pop("coverage")) for end in ends]
        covered[0]["foreign_values"] -= self._extra_reads
        covered[1]["unarmed_threads"] = 0  # of those the recorder sees all
        for key, value in covered[0].items():
            self._equal(f"coverage {key}", value, covered[1][key], ())
        for key in _ENDINGS:
            self._equal(f"end {key}", ends[0][key], ends[1][key], ())
        self._equal("rng", native.opening["rng"], dispatch.opening["rng"], ())

    def _equal(self, what: str, mine: Any, its: Any, events: Iterable[Event]) -> bool:
        if mine != its:
            self._say(what, mine, its, events)
        return bool(mine == its)

    def _say(self, what: str, mine: Any, its: Any, events: Iterable[Event]) -> None:
        where = " / ".join(map(str, events))
        self.differences.append(f"{where}: {what}: native {mine!r}, dispatch {its!r}")


def _stream(event: Event) -> tuple[bool, int]:
    """Within it the order of events is the program's; state comes last, whoever reads it."""
    is_state = bool(event.flags & EventFlag.STATE)
    return is_state, 0 if is_state else event.values["thread"]


def _place(event: Event) -> tuple[str, Stack]:
    return event.module, event.stack


def _begins(events: Sequence[Event], ops: tuple[str, ...]) -> bool:
    return tuple(event.op for event in events[: len(ops)]) == ops


def _is_in_place_of(one: Event, other: Event) -> bool:
    """``add_`` and ``add``."""
    return one.op.replace("_.", ".", 1) == other.op and one.phase == other.phase


def _slot(record: Record, in_place: bool) -> tuple[str, bool]:
    return ("" if in_place and record.is_output else record.slot), record.is_output


def _without_kernels(event: Event) -> Stack:
    kept = list(event.stack)
    compiled = event.op.startswith("compiled.")
    while kept and (kept[0][0].endswith(_KERNEL_FILES) or (compiled and "/torch/" in kept[0][0])):
        del kept[0]
    return tuple(kept)
