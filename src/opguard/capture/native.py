"""The mechanism ``native``: the C++ recorder on torch's record-function callbacks.

Operators are recorded in C++, without the interpreter lock. Here are the hooks that only Python
can place, and the thread that carries blocks of rows from the recorder to the writer.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from opguard.capture import operators, torch_private
from opguard.capture.arguments import canonical
from opguard.capture.imports import when_imported
from opguard.capture.mechanism import Session, StopProgram
from opguard.capture.modules import Program
from opguard.capture.patches import Patches, patch_graph_replay
from opguard.capture.places import CHECKPOINT_FILE
from opguard.errors import NativeError
from opguard.fingerprint import native
from opguard.fingerprint.numbers import number_bytes
from opguard.fingerprint.tensor import components
from opguard.model import DTYPES, Chunk, Mechanism, PendingChunk, Reason

IDLE_SECONDS: Final = 1.0
"""How long no block becomes full before what is waiting is handed over."""
_PACKAGE: Final = str(Path(__file__).resolve().parent.parent)
_BYTES: Final = DTYPES.index("bytes")


class Native:
    """See :class:`opguard.capture.mechanism.Mechanism`."""

    name: Mechanism = "native"
    sees_all_threads = True

    def __init__(self, session: Session) -> None:
        """Raises NativeError if the module cannot be loaded."""
        self._module: ModuleType = native.module()
        self._session = session
        self._interner = self._module.Interner()
        sites = {
            "package": _PACKAGE,
            "home": str(Path.home()),
            "engine": torch_private.engine_code,
            "step": torch_private.step_code,
            "checkpoint": CHECKPOINT_FILE,
        }
        self._recorder = self._module.Recorder(
            self._interner, sites, operators.tables(), session.mode, StopProgram
        )
        self.program = Program(self._interner, session.observer, session.fail, self._recorder)
        self.lock = threading.RLock()
        self._carrier = threading.Thread(target=self._carry, name="opguard-recorder", daemon=True)
        self._is_open = False
        self._is_flushed = False
        self._carried = 0
        """Events handed to the writer."""

    @property
    def stopped(self) -> bool:
        """The limit of events was reached, and the program is being ended."""
        return bool(self._recorder.stopped)

    # Arming

    def start(self) -> None:
        """Begin to capture."""
        self._carrier.start()
        self._recorder.start()

    def disarm(self) -> None:
        """Nothing more is captured."""
        self._recorder.select(False)

    def stop(self) -> None:
        """Take the callbacks out; returns when no thread is inside one."""
        self._recorder.stop()

    def after_fork(self) -> None:
        """The same in a forked child."""
        self._recorder.stop_after_fork()

    def arm_thread(self) -> Callable[[], None]:
        """Its frames may be walked."""
        self._recorder.has_frames()
        return lambda: None

    def select(self, on: bool) -> None:
        """Whether operators are captured."""
        self._recorder.select(on)

    def set_limit(self, events: int) -> None:
        """End the program at the first operator after so many events."""
        self._recorder.set_limit(events)

    def patch(self, patches: Patches, entered: Callable[[str], None]) -> None:
        """Calls of compiled graphs are events; what compiles them is not the program's."""
        patch_graph_replay(patches, entered)
        patches.later(
            when_imported(
                torch_private.compiled_graph_module(),
                functools.partial(torch_private.wrap_graph_calls, patches, self._graph_call),
            )
        )
        unseen = (self._module.begin_unseen, self._module.end_unseen)
        patches.later(
            when_imported(
                "torch._dynamo.callback",
                functools.partial(torch_private.wrap_compilation, patches, *unseen),
            )
        )

    def _graph_call(self, call: Callable[[], Any], inputs: Any) -> Any:
        """One call of a compiled graph; what it calls in turn is part of it."""
        return self._recorder.call_graph(call, inputs, _graph_arguments(inputs))

    # While the program runs

    def waits(self, work: Any, how: str) -> None:
        """``work.wait()`` ``begins``, ``returned`` or ``raised``."""
        if how == "begins":
            self._recorder.work_waits(work)
        else:
            self._recorder.work_waited(work, how == "returned")

    def exported(self, tensor: torch.Tensor) -> None:
        """The tensor's memory was handed to somebody else."""
        self._recorder.exported(tensor)

    def storage_resized(self, storage: torch.UntypedStorage) -> None:
        """``storage.resize_`` returned."""
        self._recorder.storage_resized(storage)

    def forget_values(self) -> None:
        """Something ran that was not captured."""
        self._recorder.forget_values()

    def finish_collectives(self) -> None:
        """Write the events of collectives that are still in flight."""
        self._recorder.finish_collectives()

    # Final state

    def begin_state_pass(self) -> None:
        """A reading of final state begins."""
        self._recorder.begin_pass()

    def emit_state(self, entries: Iterator[tuple[str, Any]]) -> None:
        """Entries of the final state. Called under ``lock``."""
        if self._is_flushed:
            return
        self._module.begin_unseen()
        try:
            for name, value in entries:
                self._emit(self._interner.intern("module", name), value)
        finally:
            self._module.end_unseen()

    def _emit(self, module: int, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            parts = components(value)
            if isinstance(parts, Reason):
                self._recorder.emit_missing(module, value, int(parts))
            else:
                self._recorder.emit_tensors(module, parts)
        elif isinstance(value, bytes):
            self._recorder.emit_bytes(module, _BYTES, value)
        else:
            dtype, data = number_bytes(value)
            self._recorder.emit_bytes(module, dtype, data)

    # Rows

    def _carry(self) -> None:
        """Runs on a thread of its own until :meth:`flush`."""
        recorder = self._recorder
        self._module.makes_room()
        try:
            while True:
                # Asked first: what is there when they are closed is still to be taken.
                closed = recorder.rows_closed
                block = recorder.take(IDLE_SECONDS)
                if not self._is_open and recorder.events:
                    self._is_open = True
                    self._session.first_event()
                elif block is None and closed:
                    return
                elif block is None:
                    recorder.cut()
                if block is not None:
                    rows = Rows(block, self._module.makes_room)
                    self._carried += rows.event_count
                    self._session.submit(rows)
                if recorder.failure:
                    self._session.fail(NativeError(recorder.failure))
        except BaseException as error:  # noqa: BLE001  (the program would wait for room for ever)
            recorder.close_rows()
            self._session.fail(error)

    def take_waiting(self) -> PendingChunk | None:
        """Rows are handed over by the carrier."""
        return None

    def flush(self) -> None:
        """Hand over everything; nothing is recorded after it."""
        with self.lock:  # another thread may be writing final state
            self._recorder.cut()
            recorded = int(self._recorder.events)
            self._is_flushed = True
        self._recorder.close_rows()
        with contextlib.suppress(RuntimeError):  # an interrupted start did not come that far
            self._carrier.join()
        if self._recorder.failure:
            self._session.fail(NativeError(self._recorder.failure))
        elif self._carried != recorded:
            lost = recorded - self._carried
            self._session.fail(NativeError(f"{lost} events did not reach the writer"))

    def close(self) -> None:
        """Give back what is held of the program's storages."""
        self._recorder.close()

    def unfingerprinted(self) -> Counter[str]:
        """Records without fingerprint, by reason."""
        return Counter(self._recorder.unfingerprinted())

    @property
    def foreign_values(self) -> int:
        """Inputs after the first step that no event produced."""
        return int(self._recorder.foreign_values)

    @property
    def lost_events(self) -> int:
        """No Python runs in the recorder that could interrupt it."""
        return 0


class Rows:
    """A block of the recorder as a chunk that is built on the writer thread."""

    def __init__(self, block: Any, makes_room: Callable[[], None]) -> None:
        """``makes_room()`` says so of the calling thread."""
        self._block = block
        self._makes_room = makes_room
        self.first_event = int(block.first_event)
        self.event_count = int(block.event_count)

    def build(self) -> Chunk:
        """The same memory as numpy columns."""
        self._makes_room()
        block = self._block
        return Chunk(
            events=block.events(),
            records=block.records(),
            producers=block.producers(),
            region_records=block.region_records(),
            region_values=block.region_values().reshape(-1, 8),
            strings=block.strings(),
        )


def _graph_arguments(inputs: Any) -> str:
    """Canonical arguments of a compiled graph's call: as ``dispatch`` sees them, which is given
    the graph first and, by some releases, an optional name last."""
    given = [
        (position, value if isinstance(value, (bool, int, float, str)) else None)
        for position, value in enumerate(inputs, 1)
        if not isinstance(value, torch.Tensor)
    ]
    values = [(0, None), *given]
    if torch_private.graphs_have_names():
        values.append((len(inputs) + 1, None))
    return canonical(
        operators.state_operator(-1), [(f"args[{position}]", value) for position, value in values]
    )
