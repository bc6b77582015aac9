"""What a capture needs of a mechanism: the two are ``native`` and ``dispatch``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from opguard.capture.modules import Observer, Program
from opguard.capture.patches import Patches
from opguard.model import Mechanism as Name
from opguard.model import Mode, PendingChunk


class StopProgram(SystemExit):
    """``--stop-after`` is reached: ends the program as ``sys.exit(0)`` would."""


@dataclass(frozen=True)
class Session:
    """What a mechanism may ask of the capture that it serves."""

    mode: Mode
    observer: Observer
    submit: Callable[[PendingChunk], None]
    """Takes rows; may wait while others are being written."""
    first_event: Callable[[], None]
    """Called once, before the first rows are submitted."""
    fail: Callable[[BaseException], None]
    """Capture cannot go on."""


class Mechanism(Protocol):
    """Sees operator calls and turns them into rows."""

    name: Name
    sees_all_threads: bool
    """Those, too, that were running when the capture began."""
    program: Program

    @property
    def lock(self) -> AbstractContextManager[Any, bool | None]:
        """Held while the final state is read or its list changed; re-entrant."""

    @property
    def stopped(self) -> bool:
        """The limit of events was reached, and the program is being ended."""

    def start(self) -> None:
        """Begin to capture."""

    def disarm(self) -> None:
        """Nothing more is captured."""

    def stop(self) -> None:
        """Take everything out of the program."""

    def after_fork(self) -> None:
        """The same in a forked child, which has this thread only."""

    def arm_thread(self) -> Callable[[], None]:
        """The calling thread of the program begins; returns what is called when it ends."""

    def select(self, on: bool) -> None:
        """Whether operators are captured: False outside the selected steps."""

    def set_limit(self, events: int) -> None:
        """End the program at the first operator after so many events."""

    def patch(self, patches: Patches, entered: Callable[[str], None]) -> None:
        """Replace attributes of torch; ``entered(name)`` is told of each opaque region."""

    def waits(self, work: Any, how: str) -> None:
        """``work.wait()`` ``begins``, ``returned`` or ``raised`` in the program."""

    def exported(self, tensor: torch.Tensor) -> None:
        """The tensor's memory was handed to somebody else."""

    def storage_resized(self, storage: torch.UntypedStorage) -> None:
        """``storage.resize_`` returned."""

    def forget_values(self) -> None:
        """Something ran that was not captured: nothing is known any more."""

    def finish_collectives(self) -> None:
        """Write the events of collectives that are still in flight."""

    def begin_state_pass(self) -> None:
        """A reading of final state begins: what an earlier one read is read again."""

    def emit_state(self, entries: Iterator[tuple[str, Any]]) -> None:
        """Entries of the final state: (name, tensor, number or bytes). Each tensor once."""

    def take_waiting(self) -> PendingChunk | None:
        """For the writer's idle hook: rows that wait, if this mechanism does not hand them over
        by itself."""

    def flush(self) -> None:
        """Hand over everything that is waiting; nothing is recorded after it."""

    def close(self) -> None:
        """Give back what is held of the program's storages."""

    def unfingerprinted(self) -> Counter[str]:
        """Records without fingerprint, by reason."""

    @property
    def foreign_values(self) -> int:
        """Inputs after the first step that no event produced."""

    @property
    def lost_events(self) -> int:
        """Calls that something of the program's own interrupted while they were recorded."""
