"""What ``opguard run`` tells its own process and its children through the environment."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "INSIDE_OPGUARD_RUN"
"""Not one of the variables that are stored: it differs from run to run."""


@dataclass(frozen=True)
class Inside:
    """The capture that the environment speaks of."""

    pid: int
    output: Path
    mode: str
    mechanism: str
    marks: Path

    def announce(self) -> None:
        """Put it into the environment."""
        os.environ[VARIABLE] = json.dumps(
            [self.pid, str(self.output), self.mode, self.mechanism, str(self.marks)]
        )


def inside() -> Inside | None:
    """The capture around this process, None without one."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        pid, output, mode, mechanism, marks = json.loads(text)
    except ValueError:
        return None  # somebody else's variable of that name
    return Inside(int(pid), Path(output), str(mode), str(mechanism), Path(marks))
