"""``opguard dump``: a run as JSON lines, a header for each rank and then one object an event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from opguard.cli.flags import debug_option
from opguard.cli.output import write
from opguard.frames import user_frame
from opguard.model import DTYPES, REASON_SHIFT, EventFlag, RankEvents, Reason, RecordFlag, Run
from opguard.store.run_reader import load_run

LINES_A_WRITE: Final = 2000
"""Enough to make writing cheap, few enough for a reader that wants the first lines only."""


@click.command("dump")
@click.argument("run", type=click.Path(path_type=Path))
@debug_option
def command(run: Path) -> int:
    """Print a run as JSON lines.

    For each rank its header, then one object an event, in call order.
    """
    lines = dump_lines(load_run(run))
    while batch := list(islice(lines, LINES_A_WRITE)):
        write("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in batch))
    return 0


def dump_lines(run: Run) -> Iterator[dict[str, Any]]:
    """The objects that ``dump`` prints."""
    for _, rank in sorted(run.ranks.items()):
        yield _header(run, rank)
        yield from _events(rank)


def _header(run: Run, rank: RankEvents) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "world_size": run.world_size,
        "run_id": run.run_id,
        "events": rank.event_count,
        "records": rank.record_count,
        "partial": rank.partial,
        "problems": list(rank.problems),
        "open": dict(rank.opening),
        "close": None if rank.closing is None else dict(rank.closing),
    }


def _events(rank: RankEvents) -> Iterator[dict[str, Any]]:
    arguments = rank.strings.values("arguments")
    owner = np.repeat(np.arange(rank.event_count), np.diff(rank.first_record))
    for seq in range(rank.event_count):
        boundary = rank.boundaries[rank.boundary[seq]]
        file, line, _ = user_frame(boundary.stack)
        records = range(rank.first_record[seq], rank.first_record[seq + 1])
        tensors = [(i, _record(rank, i, owner)) for i in records]
        event = {
            "seq": seq,
            "op": boundary.operator,
            "module": boundary.module,
            "phase": boundary.phase,
            "step": int(rank.step[seq]),
            "thread": int(rank.thread[seq]),
            "arguments": arguments[rank.arguments[seq]],
            "file": file or None,
            "line": line or None,
            "inputs": [t for i, t in tensors if not rank.record_flags[i] & RecordFlag.OUTPUT],
            "outputs": [t for i, t in tensors if rank.record_flags[i] & RecordFlag.OUTPUT],
        }
        if rank.flags[seq] & EventFlag.RAISED:
            event["raised"] = True
        yield event


def _record(rank: RankEvents, index: int, owner: Any) -> dict[str, Any]:
    """One tensor; ``owner`` is the event of every record. Marks that are rare come last."""
    strings, flags = rank.strings, int(rank.record_flags[index])
    reason = Reason(flags >> REASON_SHIFT)
    produced = rank.producers[rank.first_producer[index] : rank.first_producer[index + 1]]
    slots = strings.values("slot")
    record = {
        "slot": slots[rank.slot[index]],
        "dtype": DTYPES[rank.dtype[index]],
        "shape": json.loads(strings.values("shape")[rank.shape[index]]),
        "mix64": f"{int(rank.mix64[index]):016x}" if reason is Reason.PRESENT else None,
        "known": not flags & (RecordFlag.FRESH | RecordFlag.OUTPUT),
        "producers": [[int(owner[p]), slots[rank.slot[p]]] for p in produced],
    }
    if reason is not Reason.PRESENT:
        record["reason"] = reason.name.lower()
    if flags & RecordFlag.VIA:
        record["via"] = True
    if flags & RecordFlag.VOID:
        record["void"] = True
    return record
