"""Compares what the two mechanisms made of one program, event by event.

Everything has to be the same except what a row of ``DEVIATIONS`` allows. The rows are those of
``docs/deviations.md``: a mode is not neutral, so that PyTorch itself takes other paths under one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opguard.model import DTYPES, EventFlag, RankEvents, RecordFlag

Stack = tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class Deviation:
    """Calls that PyTorch makes other ones of under a mode.

    One call on each side: the two are compared like others, by what they read and wrote. Other
    numbers: nothing but the place of the stretch is compared, and the last outputs stand for each
    other. None under ``native``: the call under ``dispatch`` is one too many.
    """

    name: str
    reason: str
    native: tuple[str, ...] = ()
    dispatch: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """One tensor record; producers are global record indices."""

    slot: str
    is_output: bool
    values: dict[str, Any]
    producers: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """One event of a run."""

    seq: int
    op: str
    phase: str
    thread: int
    flags: int
    values: dict[str, Any]
    first_record: int
    records: tuple[Record, ...]

    @property
    def raised(self) -> bool:
        return bool(self.flags & EventFlag.RAISED)

    @property
    def writes_in_place(self) -> bool:
        return "_." in self.op

    def outputs(self) -> list[int]:
        """Global indices of its output records."""
        return [self.first_record + i for i, r in enumerate(self.records) if r.is_output]

    def inputs(self) -> list[int]:
        """The same of inputs."""
        return [self.first_record + i for i, r in enumerate(self.records) if not r.is_output]


IN_PLACE: Final = Deviation(
    "in place",
    "where gradients meet, and in formulas of composite operators, PyTorch writes in place only "
    "where no mode could see it",
)
CLONE: Final = Deviation(
    "clone",
    "above a mode, and so nested in the operator for the recorder, PyTorch clones what an in-place "
    "operator is about to overwrite and backward needs, and what carries a conj or neg bit that a "
    "kernel does not know; AccumulateGrad takes a sparse gradient over only where nobody else "
    "refers to its parts",
)
STOPPED: Final = Deviation(
    "stopped",
    "a call that autograd's layer refuses, or that a hook on saved tensors ends, as checkpoint "
    "does, raised; a mode lies below and sees no call, or one that returned",
)
KERNEL_FRAMES: Final = Deviation(
    "frames", "autograd kernels of custom operators are written in Python and stand on the stack"
)
NEXT_CALL: Final = Deviation(
    "next call",
    "the node of a write into a view is made once the operator has returned: its backward carries "
    "module and line of the next call, since a mode is told of no return",
)
NAMED: Final = (IN_PLACE, CLONE, STOPPED, KERNEL_FRAMES, NEXT_CALL)
STRETCHES: Final = (
    Deviation(
        "max over a dimension",
        "its backward scatters into a new tensor where a mode could see it",
        native=("aten.zeros.default", "aten.scatter_.src"),
        dispatch=("aten.new_zeros.default", "aten.scatter.src"),
    ),
    Deviation(
        "cond",
        "torch.cond is an operator of its own for a mode; the recorder sees what its branch calls",
        native=("aten._local_scalar_dense.default", "aten.sin.default"),
        dispatch=("higher_order.cond",),
    ),
)
DEVIATIONS: Final = NAMED + STRETCHES
CLONES: Final = "aten.clone.default"
_KERNEL_FILES: Final = (
    "torch/_library/autograd.py", "torch/_library/custom_ops.py", "torch/_ops.py",
    "torch/autograd/function.py",
)  # fmt: skip


class Parity:
    """Two ranks of one program side by side; ``differences`` are those no row allows."""

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

    def _pair(self, left: list[Event], right: list[Event]) -> Iterator[tuple[Event, Event]]:
        at, to = 0, 0
        while at < len(left) or to < len(right):
            mine, its = left[at : at + 8], right[to : to + 8]
            found = self._allowed(mine, its)
            if found is None:
                self._say("events", [e.op for e in mine], [e.op for e in its], mine or its)
                return
            taken, given = found
            if taken == given == 1:
                yield mine[0], its[0]
            if taken and given:
                self._join(mine[taken - 1], its[given - 1])
            else:
                self._note_extra(its[:given])
            at, to = at + taken, to + given

    def _allowed(self, left: list[Event], right: list[Event]) -> tuple[int, int] | None:
        """How many of the next events stand for each other."""
        one, other = left[0] if left else None, right[0] if right else None
        if one and other and (one.op, one.phase) == (other.op, other.phase):
            if one.raised and not other.raised:
                self.used.add(STOPPED)
                self._extra.update(dict.fromkeys(other.outputs(), ()))
            return 1, 1
        if one and other and _is_in_place_of(one, other):
            self.used.add(IN_PLACE)
            return 1, 1
        if one and one.raised:
            self.used.add(STOPPED)
            return 1, 0
        if _begins(right, (CLONES,)):
            self.used.add(CLONE)
            self._after_clones.add(right[0].seq + 1)
            return 0, 1
        for row in STRETCHES:
            if _begins(left, row.native) and _begins(right, row.dispatch):
                self.used.add(row)
                return len(row.native), len(row.dispatch)
        return None

    def _note_extra(self, events: list[Event]) -> None:
        for event in events:
            read = [producer for r in event.records if not r.is_output for producer in r.producers]
            copied = tuple(read) if event.op == CLONES else ()
            self._extra.update(dict.fromkeys(event.outputs(), copied))

    def _join(self, one: Event, other: Event) -> None:
        self._partners.update(zip(one.inputs(), other.inputs(), strict=False))
        self._partners.update(zip(one.outputs(), other.outputs(), strict=False))

    def _compare(self, one: Event, other: Event) -> None:
        stopped = one.raised and not other.raised
        in_place = one.op != other.op
        for key, value in one.values.items():
            if key not in ("module", "stack"):
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
        self._equal("module", one.values["module"], other.values["module"], (one, other))
        stacks: list[Stack] = [event.values["stack"] for event in (one, other)]
        if stacks[0] != stacks[1]:
            self.used.add(KERNEL_FRAMES)
            stacks = [_without_kernels(stack, one.op) for stack in stacks]
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
            fresh = values["flags"] & RecordFlag.FRESH
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
        covered = [dict(end.pop("coverage")) for end in ends]
        covered[0]["foreign_values"] -= self._extra_reads
        covered[1]["unarmed_threads"] = 0  # of those the recorder sees all
        for key, value in covered[0].items():
            self._equal(f"coverage {key}", value, covered[1][key], ())
        for key in ("steps", "seeded", "exit_code", "exception", "interrupted", "stopped"):
            self._equal(f"end {key}", ends[0][key], ends[1][key], ())
        self._equal("rng", native.opening["rng"], dispatch.opening["rng"], ())

    def _equal(self, what: str, mine: Any, its: Any, events: Iterable[Event]) -> bool:
        if mine != its:
            self._say(what, mine, its, events)
        return bool(mine == its)

    def _say(self, what: str, mine: Any, its: Any, events: Iterable[Event]) -> None:
        where = " / ".join(
            f"{e.seq} {e.op} {e.phase} {':'.join(map(str, (*e.values['stack'], ('', 0))[0][:2]))}"
            for e in list(events)[:2]
        )
        self.differences.append(f"{where}: {what}: native {mine!r}, dispatch {its!r}")


def events_of(rank: RankEvents) -> Iterator[Event]:
    """All events of a rank, final state included."""
    arguments = rank.strings.values("arguments")
    records = list(_records(rank))
    for seq in range(rank.event_count):
        boundary = rank.boundaries[rank.boundary[seq]]
        first, last = int(rank.first_record[seq]), int(rank.first_record[seq + 1])
        yield Event(
            seq, boundary.operator, boundary.phase, int(rank.thread[seq]), int(rank.flags[seq]),
            {
                "phase": boundary.phase, "module": boundary.module, "stack": _named(boundary.stack),
                "step": int(rank.step[seq]), "thread": int(rank.thread[seq]),
                "stream": int(rank.stream[seq]), "arguments": arguments[rank.arguments[seq]],
            },
            first, tuple(records[first:last]),
        )  # fmt: skip


def _records(rank: RankEvents) -> Iterator[Record]:
    slots, shapes, strides = (rank.strings.values(kind) for kind in ("slot", "shape", "strides"))
    of_record = zip(rank.region_records, rank.region_values, strict=True)
    regions = {int(record): values.tolist() for record, values in of_record}
    for index in range(rank.record_count):
        flags = int(rank.record_flags[index])
        values = {
            "dtype": DTYPES[rank.dtype[index]],
            "flags": flags,
            "shape": shapes[rank.shape[index]],
            "strides": strides[rank.strides[index]],
            "mix64": f"{int(rank.mix64[index]):016x}",
            "xor32": f"{int(rank.xor32[index]):08x}",
            "regions": regions.get(index),
            "small": rank.small[rank.small_offset[index] : rank.small_offset[index + 1]].tobytes(),
        }
        produced = rank.producers[rank.first_producer[index] : rank.first_producer[index + 1]]
        yield Record(
            slots[rank.slot[index]], bool(flags & RecordFlag.OUTPUT), values,
            tuple(produced.tolist()),
        )  # fmt: skip


def _named(stack: Stack) -> Stack:
    """Modules of traced code are numbered over the process."""
    return tuple((re.sub(r"<eval_with_key>.*", "<traced>", f), line, name) for f, line, name in stack)


def _stream(event: Event) -> tuple[bool, int]:
    """Within it the order of events is the program's; state comes last, whoever reads it."""
    is_state = bool(event.flags & EventFlag.STATE)
    return is_state, 0 if is_state else event.thread


def _place(event: Event) -> tuple[str, Stack]:
    return event.values["module"], event.values["stack"]


def _begins(events: Sequence[Event], ops: tuple[str, ...]) -> bool:
    return tuple(event.op for event in events[: len(ops)]) == ops


def _is_in_place_of(one: Event, other: Event) -> bool:
    """``add_`` and ``add``."""
    return one.op.replace("_.", ".", 1) == other.op and one.phase == other.phase


def _slot(record: Record, in_place: bool) -> tuple[str, bool]:
    return ("" if in_place and record.is_output else record.slot), record.is_output


def _without_kernels(stack: Stack, op: str) -> Stack:
    kept = list(stack)
    compiled = op.startswith("compiled.")
    while kept and (kept[0][0].endswith(_KERNEL_FILES) or (compiled and "/torch/" in kept[0][0])):
        del kept[0]
    return tuple(kept)
