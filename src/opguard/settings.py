"""The one table of capture options. Command line flags and variables are generated from it.

Standard library only: ``opguard run`` loads this module before the program it runs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from opguard.errors import UsageError

if TYPE_CHECKING:
    from opguard.model import Mode

MechanismChoice: TypeAlias = Literal["auto", "native", "dispatch"]
StopAfter: TypeAlias = tuple[int, Literal["steps", "events"]]

RUNS_FOLDER: Final = Path(".opguard", "runs")
"""Where runs go when no folder is named, under the working directory."""


@dataclass(frozen=True)
class Target:
    """The program to run: a script path, or a module name as for ``python -m``."""

    name: str
    is_module: bool = False
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaptureSettings:
    """How one run is captured."""

    output: Path | None = None
    """The run's folder; None: a new one under ``.opguard/runs``."""
    force: bool = False
    """Empty the folder first if something is in it."""
    mode: Mode = "trusted"
    mechanism: MechanismChoice = "auto"
    require_native: bool = False
    steps: tuple[int, int] | None = None
    """Half-open range of the steps to fingerprint; None: all."""
    stop_after: StopAfter | None = None
    watch: tuple[str, ...] = ()
    """Names or globs of watched tensors; empty: all that the program watches."""


def parse_steps(text: str) -> tuple[int, int]:
    """``A:B`` as the half-open range (A, B).

    Raises:
        UsageError: the text has another form, or the range is empty.
    """
    found = re.fullmatch(r"([0-9]+):([0-9]+)", text)
    if found is None:
        raise UsageError(f"expected A:B with two whole numbers, got {text!r}")
    first, end = int(found[1]), int(found[2])
    if first >= end:
        raise UsageError(f"{text} is an empty range: B is the first step left out")
    return first, end


def parse_stop_after(text: str) -> StopAfter:
    """``N``, ``Nsteps`` or ``Nevents``; a bare number counts steps.

    Raises:
        UsageError: the text has another form, or N is 0.
    """
    found = re.fullmatch(r"([0-9]+) ?(steps?|events?)?", text)
    if found is None or int(found[1]) == 0:
        raise UsageError(
            f"expected a positive number of steps or events (10, 10steps), got {text!r}"
        )
    return int(found[1]), "events" if (found[2] or "").startswith("event") else "steps"


def parse_names(text: str) -> tuple[str, ...]:
    """Comma-separated names.

    Raises:
        UsageError: no name is left once blanks are dropped.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError("expected names or globs separated by commas")
    return names


def parse_switch(text: str) -> bool:
    """``1`` or ``0``, as variables spell a flag.

    Raises:
        UsageError: any other text.
    """
    if text not in ("0", "1"):
        raise UsageError(f"expected 0 or 1, got {text!r}")
    return text == "1"


@dataclass(frozen=True)
class Option:
    """One row of the table. An option that is not given is None; what then holds is the
    variable's value, else the default of :class:`CaptureSettings`."""

    field: str
    """Field of :class:`CaptureSettings`."""
    help: str
    parse: Callable[[str], Any] = str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    short: str = ""
    variable: str = ""
    """Environment variable that gives the value when the flag is absent."""

    @property
    def flag(self) -> str:
        """The long flag, ``--stop-after``."""
        return "--" + self.field.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        """True for flags that take no value."""
        return self.parse is parse_switch

    def read(self, text: str, source: str) -> Any:
        """The value that ``text`` stands for; ``source`` names its origin in errors.

        Raises:
            UsageError: the text is no value of this option.
        """
        if self.choices and text not in self.choices:
            raise UsageError(f"{source}: expected one of {', '.join(self.choices)}, got {text!r}")
        try:
            return self.parse(text)
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from None


OPTIONS: Final = (
    Option(
        "output", "Folder of the run. Default: a new one under .opguard/runs.",
        parse=Path, metavar="DIR", short="-o",
    ),
    Option("force", "Empty the folder first if something is in it.", parse=parse_switch),
    Option(
        "mode",
        "What is fingerprinted: outputs and inputs of unknown origin (trusted, the default), "
        "every input too (full), or communication only (collectives).",
        choices=("trusted", "full", "collectives"), variable="OPGUARD_MODE",
    ),
    Option(
        "mechanism", "How operators are seen. Default: auto, the best one that is there.",
        choices=("auto", "native", "dispatch"), variable="OPGUARD_MECHANISM",
    ),
    Option(
        "require_native", "Stop at once where the native parts are missing.",
        parse=parse_switch, variable="OPGUARD_REQUIRE_NATIVE",
    ),
    Option(
        "steps", "Fingerprint only steps A to B, B left out, counted from 0.",
        parse=parse_steps, metavar="A:B",
    ),
    Option(
        "stop_after", "End the program, with exit code 0, once N steps or events are captured.",
        parse=parse_stop_after, metavar="N[steps|events]",
    ),
    Option(
        "watch", "Of the tensors that the program watches, keep those with these names or globs.",
        parse=parse_names, metavar="NAMES",
    ),
)  # fmt: skip


def resolve(given: Mapping[str, str | bool | None], environ: Mapping[str, str]) -> CaptureSettings:
    """Settings from what was given (by field name; None: not given) and from variables.

    Raises:
        UsageError: a value that the table does not allow; the message names flag or variable.
    """
    values: dict[str, Any] = {}
    for option in OPTIONS:
        value = given.get(option.field)
        if isinstance(value, str):
            values[option.field] = option.read(value, option.flag)
        elif value is not None:
            values[option.field] = value
        elif environ.get(option.variable):
            values[option.field] = option.read(environ[option.variable], option.variable)
    return CaptureSettings(**cast(Any, values))


def new_run_folder() -> Path:
    """A folder name under ``.opguard/runs`` that no other process chooses."""
    return RUNS_FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
