"""Runs a small function under capture and gives its events back as plain objects."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from torch.utils import _python_dispatch

import opguard
from opguard.cli.dump import dump_lines
from opguard.fingerprint import native
from program import run_program

MECHANISM = "auto"
"""Set by a fixture for tests that run under each mechanism."""


@dataclass
class Event:
    """One event of a dump."""

    op: str
    module: str
    phase: str
    step: int
    arguments: str
    line: int | None
    inputs: dict[str, dict[str, Any]]
    outputs: dict[str, dict[str, Any]]
    raised: bool
    seq: int
    thread: int

    @property
    def name(self) -> str:
        """``addmm`` of ``aten.addmm.default``."""
        return self.op.split(".")[1]


@dataclass
class Captured:
    """Header and events of one rank."""

    header: dict[str, Any]
    events: list[Event]
    state: list[Event] = field(default_factory=list)

    @property
    def coverage(self) -> dict[str, Any]:
        coverage: dict[str, Any] = self.header["close"]["coverage"]
        return coverage

    @property
    def names(self) -> list[str]:
        """Operator names in order."""
        return [event.name for event in self.events]

    def one(self, name: str) -> Event:
        """The only event of that operator."""
        found = [event for event in self.events if event.name == name]
        assert len(found) == 1, (name, self.names)
        return found[0]

    def all(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]


def read(folder: Path) -> list[Captured]:
    """Every rank of a run."""
    ranks: list[Captured] = []
    for line in dump_lines(opguard.load_run(folder)):
        if "open" in line:
            ranks.append(Captured(line, []))
            continue
        event = Event(
            op=line["op"], module=line["module"], phase=line["phase"], step=line["step"],
            arguments=line["arguments"], line=line["line"],
            inputs={record["slot"]: record for record in line["inputs"]},
            outputs={record["slot"]: record for record in line["outputs"]},
            raised=line.get("raised", False), seq=line["seq"], thread=line["thread"],
        )  # fmt: skip
        (ranks[-1].state if event.op == "opguard.state" else ranks[-1].events).append(event)
    return ranks


def capture(folder: Path, program: Callable[[], Any], **options: Any) -> Captured:
    """Events of ``program()`` under ``opguard.capture``."""
    with opguard.capture(folder, **{"mechanism": MECHANISM, **options}):
        program()
    return read(folder)[0]


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """What runs inside is captured by no mechanism."""
    module = native.module() if native.available() else None
    with _python_dispatch._disable_current_modes():
        if module is not None:
            module.begin_unseen()
        try:
            yield
        finally:
            if module is not None:
                module.end_unseen()


def run_source(folder: Path, source: str, *arguments: str, **options: Any) -> CompletedProcess[str]:
    """``opguard run`` on a script with that source, into ``folder/run``."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script.py"
    script.write_text(textwrap.dedent(source))
    return run_program(
        [
            "run",
            "--mechanism",
            MECHANISM,
            *options.pop("flags", ()),
            "-o",
            str(folder / "run"),
            str(script),
            *arguments,
        ],
        **options,
    )
