"""Alignment and certificate of two synthetic runs: seconds, memory, growth.

    python benchmarks/align.py [--events 1000000] [--growth]

The runs are shaped like GPT training: modules, three phases, 2.7 tensor records an event. Each
side lacks other 1 % of the events (so 2 % gaps), and independent neighbours change places. Variant
``same`` agrees everywhere; in ``early`` every byte after the second step differs, so that nothing
anchors by content; ``flat`` is ``early`` without module paths and steps, where no key anchors.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from opguard.align.aligner import align
from opguard.certify import certify
from opguard.columns import hash_columns, join_sides, spans
from opguard.model import (
    EVENT_COLUMNS,
    RECORD_COLUMNS,
    Chunk,
    RankEvents,
    RecordFlag,
    Status,
    StringKind,
)
from opguard.policy import Policy
from opguard.store.run_reader import load_run
from opguard.store.run_writer import RunWriter

EVENTS_A_STEP = 1000
EVENTS_A_CHUNK = 4096
OPERATORS = 24
OPENING = {
    "environment": {"torch": "2.13.0"},
    "environment_key": "linux",
    "probe": {},
    "command": ["synthetic"],
    "mode": "trusted",
    "mechanism": "native",
    "rng": {},
}
CLOSING = {"coverage": {}, "interrupted": False, "stopped": False, "exit_code": 0}


@dataclass(frozen=True)
class Events:
    """A run before it is stored. E events, R records; producers: at most one a record, or -1."""

    boundary: Any
    step: Any
    arguments: Any
    first_record: Any
    output: Any
    slot: Any
    shape: Any
    mix64: Any
    producer: Any
    leaf: Any
    """(E,) events whose outputs nothing reads."""
    strings: tuple[tuple[StringKind, int, str], ...]


def universe(count: int, flat: bool) -> Events:
    """All events that either side may have."""
    rng = np.random.default_rng(1)
    template = rng.integers(0, OPERATORS, EVENTS_A_STEP)
    inputs = 1 + rng.integers(0, 10, EVENTS_A_STEP) // 5
    outputs = 1 + (rng.random(EVENTS_A_STEP) < 0.2)
    event = np.arange(count)
    place = event % EVENTS_A_STEP
    in_count, out_count = inputs[place], outputs[place]
    first_record = np.concatenate([[0], np.cumsum(in_count + out_count)])
    owner = np.repeat(event, in_count + out_count)
    within = np.arange(first_record[-1]) - first_record[owner]
    output = within >= in_count[owner]
    leaf = rng.random(count) < 0.03
    first_output = first_record[:-1] + in_count
    # An input reads the first output of an event up to 40 back, or of the step before (weights).
    back = np.where(rng.random(len(owner)) < 0.3, EVENTS_A_STEP, rng.integers(3, 40, len(owner)))
    source = np.maximum(owner - back, 0)
    while leaf[source].any() and (source[leaf[source]] > 0).any():
        source = np.where(leaf[source] & (source > 0), source - 1, source)
    readable = ~output & (source < owner) & ~leaf[source]
    producer = np.where(readable, first_output[source], -1)
    # One event in 10 writes its first input in place.
    writes = output & (within == in_count[owner]) & (place[owner] % 10 == 0)
    producer[writes] = producer[first_record[:-1][owner[writes]]]
    return Events(
        boundary=np.where(flat, template[place], place),
        step=np.where(flat, 0, event // EVENTS_A_STEP),
        arguments=place % 7,
        first_record=first_record,
        output=output,
        slot=np.where(output, np.where(writes, 12, 8 + within - in_count[owner]), within),
        shape=template[place][owner] % 5,
        mix64=hash_columns(np.arange(len(owner)), np.full(len(owner), 7)),
        producer=producer,
        leaf=leaf,
        strings=_strings(template, flat),
    )


def _strings(template: Any, flat: bool) -> tuple[tuple[StringKind, int, str], ...]:
    operators = [f"aten.op{i}.default" for i in range(OPERATORS)]
    modules = [""] + ([] if flat else [f"GPT.blocks.{i // 20}.part{i % 20}" for i in range(200)])
    boundaries = (
        [(i, 0, 1) for i in range(OPERATORS)]
        if flat
        else [
            (int(op), 1 + i * 200 // EVENTS_A_STEP, 1 + i // 400) for i, op in enumerate(template)
        ]
    )
    tables: dict[StringKind, list[str]] = {
        "operator": operators,
        "module": modules,
        "boundary": [f"[{op}, {module}, {phase}, -1]" for op, module, phase in boundaries],
        "arguments": [f"dim={i}" for i in range(7)],
        "shape": [f"[{i + 2},64]" for i in range(5)],
        "strides": ["[64,1]"],
        "slot": [f"input{i}" for i in range(8)] + [str(i) for i in range(4)] + ["input0!"],
    }
    return tuple((kind, i, text) for kind, texts in tables.items() for i, text in enumerate(texts))


def other_order(events: Events, seed: int) -> Any:
    """Positions in which one side runs its events: without 1 % of them, some neighbours swapped."""
    rng = np.random.default_rng(seed)
    count = len(events.boundary)
    order = np.arange(count)
    if seed > 1:
        swap = np.flatnonzero(rng.random(count // 2) < 0.05) * 2
        order[swap], order[swap + 1] = order[swap + 1].copy(), order[swap].copy()
    dropped = events.leaf[order] & (rng.random(count) < 1 / 3)
    return order[~dropped]


def side(events: Events, order: Any, salt_after: int | None) -> Events:
    """One side's events in its order; outputs of steps past ``salt_after`` get other bytes."""
    starts = events.first_record[order]
    counts = events.first_record[order + 1] - starts
    records = spans(starts, counts)
    place = np.full(len(events.output), -1)
    place[records] = np.arange(len(records))
    producer = np.where(events.producer[records] >= 0, place[events.producer[records]], -1)
    mix64 = events.mix64[records]
    if salt_after is not None:
        late = np.repeat(order >= salt_after * EVENTS_A_STEP, counts)
        mix64 = np.where(late & events.output[records], mix64 ^ np.uint64(1), mix64)
    known = (producer >= 0) & ~events.output[records]
    mix64[known] = mix64[producer[known]]
    return replace(
        events,
        boundary=events.boundary[order],
        step=events.step[order],
        arguments=events.arguments[order],
        first_record=np.concatenate([[0], np.cumsum(counts)]),
        output=events.output[records],
        slot=events.slot[records],
        shape=events.shape[records],
        mix64=mix64,
        producer=producer,
    )


@dataclass(frozen=True)
class Part:
    """One chunk of a run, built when the writer asks."""

    events: Events
    begin: int

    @property
    def first_event(self) -> int:
        """Position of its first event in the run."""
        return self.begin

    @property
    def event_count(self) -> int:
        """Events in it."""
        return min(EVENTS_A_CHUNK, len(self.events.boundary) - self.begin)

    def build(self) -> Chunk:
        """Columns of the chunk."""
        run, begin = self.events, self.begin
        end = begin + self.event_count
        low, high = run.first_record[begin], run.first_record[end]
        producer = run.producer[low:high]
        has = producer >= 0
        size = high - low
        columns: dict[str, Any] = {
            "slot": run.slot[low:high],
            "dtype": np.full(size, 7),
            "record_flags": np.where(run.output[low:high], RecordFlag.OUTPUT, 0),
            "shape": run.shape[low:high],
            "strides": np.zeros(size),
            "mix64": run.mix64[low:high],
            "xor32": run.mix64[low:high] >> np.uint64(32),
            "first_producer": np.cumsum(has) - has,
            "small_offset": np.zeros(size),
        }
        records = {
            name: np.asarray(column, RECORD_COLUMNS[name]) for name, column in columns.items()
        }
        records["small"] = np.empty(0, np.uint8)
        rows: dict[str, Any] = {
            "boundary": run.boundary[begin:end],
            "step": run.step[begin:end],
            "thread": np.zeros(end - begin),
            "stream": np.zeros(end - begin),
            "host_ns": np.arange(begin, end),
            "arguments": run.arguments[begin:end],
            "flags": np.zeros(end - begin),
            "first_record": run.first_record[begin:end] - low,
        }
        return Chunk(
            events={name: np.asarray(column, EVENT_COLUMNS[name]) for name, column in rows.items()},
            records=records,
            producers=producer[has].astype(np.uint32),
            region_records=np.empty(0, np.uint32),
            region_values=np.empty((0, 8), np.uint64),
            strings=run.strings if begin == 0 else (),
        )


def store(events: Events, folder: Path) -> None:
    """Write a run of one rank."""
    writer = RunWriter(
        folder, rank=0, world_size=1, run_id=None, opening=OPENING, idle=lambda: None
    )
    for begin in range(0, len(events.boundary), EVENTS_A_CHUNK):
        writer.submit(Part(events, begin))
    writer.close(CLOSING)


def make(folder: Path, count: int, variant: str) -> None:
    """Both runs of a variant."""
    every = universe(count, flat=variant == "flat")
    salt = None if variant == "same" else 2
    store(side(every, other_order(every, 1), None), folder / "baseline")
    store(side(every, other_order(every, 2), salt), folder / "candidate")


def peak_gib() -> float:
    """Peak resident memory of this process; ``ru_maxrss`` would start with the parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def measure(folder: Path) -> None:
    """Load, align and certify in this process; print one line."""
    times = [time.perf_counter()]
    runs: list[RankEvents] = [
        load_run(folder / name).ranks[0] for name in ("baseline", "candidate")
    ]
    times.append(time.perf_counter())
    sides = join_sides(*runs)
    alignment = align(sides)
    times.append(time.perf_counter())
    certificate = certify(sides, alignment, Policy())
    times.append(time.perf_counter())
    load, aligned, certified = np.diff(times)
    peak = peak_gib()
    records = runs[0].record_count / max(runs[0].event_count, 1)
    disagreeing = int((certificate.status == Status.DISAGREES).sum())
    print(
        f"{runs[0].event_count:>9} {records:8.2f} {load:6.2f} {aligned:6.2f} {certified:8.2f} "
        f"{aligned + certified:6.2f} {peak:6.2f}  {len(alignment.baseline)} pairs, "
        f"{certificate.counts['moved']} moved, {disagreeing} disagree, "
        f"shares {certificate.paired_share[0]:.4f} {certificate.paired_share[1]:.4f}"
    )


def main() -> None:
    """Parse arguments, make the runs, measure each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--growth", action="store_true", help="also 10^4 and 10^5 events")
    parser.add_argument("--variants", nargs="*", default=["same", "early", "flat"])
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    sizes = [10_000, 100_000] if arguments.growth else []
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    for variant in arguments.variants:
        print(f"{variant}\n   events rec/evt   load  align  certify    sum    GiB")
        for count in [*sizes, arguments.events]:
            with tempfile.TemporaryDirectory() as folder:
                make(Path(folder), count, variant)
                subprocess.run(  # noqa: S603 - this very file
                    [sys.executable, __file__, "--measure", folder], check=True, env=environment
                )


if __name__ == "__main__":
    main()
