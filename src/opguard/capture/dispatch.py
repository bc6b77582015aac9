"""The mechanism ``dispatch``: a TorchDispatchMode a thread.

A mode changes some programs (DESIGN section 3); what can be kept unchanged from here is: calls on
subclasses desugar, composites under inference mode run through their own kernel, compiled
functions stay compiled, and a mode the program left on the stack stays there.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from torch.utils._python_dispatch import TorchDispatchMode

from opguard.capture import torch_private
from opguard.capture.blame import raised_by_us
from opguard.capture.call import Call
from opguard.capture.interning import Interner
from opguard.capture.mechanism import Session, StopProgram
from opguard.capture.modules import Program
from opguard.capture.operators import Kind, Operator
from opguard.capture.patches import Patches, patch_for_mode, patch_graph_replay
from opguard.capture.recorder import Recorder
from opguard.model import Mechanism

EVENT: Final = Kind.EVENT
NO_LIMIT: Final = sys.maxsize


@dataclass
class Switch:
    """Shared by the modes of all threads and read at every operator."""

    armed: bool = True
    """False for good once capture ends."""
    on: bool = True
    """False outside the selected steps."""
    limit: int = NO_LIMIT
    """Number of events at which the program is to end."""
    stopped: bool = False
    collectives_only: bool = False

    def disarm(self) -> None:
        """Nothing is captured any more."""
        self.armed = self.on = False


class CaptureMode(TorchDispatchMode):
    """Hands every operator call of one thread to the recorder."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled functions stay compiled; the mode is off while they are being compiled."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The wrapper that this would add imports the compiler at the first operator. It does what
        # __torch_dispatch__ does itself.
        return False

    def __init__(
        self, recorder: Recorder, switch: Switch, fail: Callable[[BaseException], None]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._switch = switch
        self._fail = fail

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        """One operator call; the compiler is kept from tracing what is ours."""
        frame = sys._getframe().f_back
        tracer = torch_private.set_tracer(None)
        if tracer is None:
            return self._dispatch(func, types, args, kwargs or {}, frame)
        try:
            return self._dispatch(func, types, args, kwargs or {}, frame)
        finally:
            torch_private.set_tracer(tracer)

    def _dispatch(
        self, func: Any, types: Any, args: Any, kwargs: Any, frame: FrameType | None
    ) -> Any:
        if types and any(map(torch_private.desugars, types)):
            return NotImplemented
        switch = self._switch
        if not switch.on:
            return func(*args, **kwargs)
        recorder = self._recorder
        if recorder.events >= switch.limit:
            switch.stopped = True
            raise StopProgram(0)
        operator = recorder.operator(func)
        if operator.kind is not EVENT:
            return self._not_an_event(operator, func, args, kwargs)
        only_touches = switch.collectives_only and not operator.collective
        if only_touches and not recorder.collectives.pending:
            return func(*args, **kwargs)
        if operator.may_view:
            return self._maybe_view(operator, func, args, kwargs, frame)
        if only_touches:
            self._guarded(recorder.touch, operator, args, kwargs)
            return func(*args, **kwargs)
        call = self._before(operator, args, kwargs, frame)
        if call is None:
            return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException:
            self._guarded(recorder.raised, call)
            raise
        self._guarded(recorder.after, call, result)
        return result

    def _not_an_event(self, operator: Operator, func: Any, args: Any, kwargs: Any) -> Any:
        if operator.kind is Kind.COMPOSITE:
            return self._composite(func, args, kwargs)
        if operator.schema_name == "aten::set_":
            self._guarded(self._recorder.rebuilds, args)
        result = func(*args, **kwargs)
        if operator.declares_writes:
            self._guarded(self._recorder.passed, args)
        return result

    def _maybe_view(
        self, operator: Operator, func: Any, args: Any, kwargs: Any, frame: FrameType | None
    ) -> Any:
        """It writes nothing, so that its inputs may be read once it is clear that it copied."""
        raised, result = True, None
        try:
            result = func(*args, **kwargs)
            raised = False
            return result
        finally:
            self._guarded(self._after_maybe_view, operator, args, kwargs, frame, result, raised)

    def _after_maybe_view(
        self, operator: Operator, args: Any, kwargs: Any, frame: FrameType | None, result: Any,
        raised: bool,
    ) -> None:  # fmt: skip
        recorder = self._recorder
        if not raised and recorder.is_plain_view(args, result, frame):
            return
        if self._switch.collectives_only and not operator.collective:
            recorder.touch(operator, args, kwargs)
            return
        call = recorder.before(operator, args, kwargs, frame)
        if call is not None:
            if raised:
                recorder.raised(call)
            else:
                recorder.after(call, result)

    def _before(
        self, operator: Operator, args: Any, kwargs: Any, frame: FrameType | None
    ) -> Call | None:
        try:
            return self._recorder.before(operator, args, kwargs, frame)
        except BaseException as error:  # noqa: BLE001  (judged: ours, or the program's own)
            self._judge(error)
            return None

    def _guarded(self, step: Callable[..., None], *args: Any) -> None:
        try:
            step(*args)
        except BaseException as error:  # noqa: BLE001  (judged: ours, or the program's own)
            self._judge(error)

    def _judge(self, error: BaseException) -> None:
        """A defect of ours must not stop the program; what its signal handlers raise must."""
        if isinstance(error, Exception) and raised_by_us(error):
            self._fail(error)
            return
        self._recorder.lost_events += 1
        raise error

    def _composite(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run through the composite kernel with the mode on, so that inner calls are seen."""
        torch_private.push_mode(self)
        try:
            return func._op_dk(torch_private.ALIAS_DISPATCH_KEY, *args, **kwargs)
        finally:
            torch_private.remove_mode(self)


torch_private.leave_untraced(CaptureMode.__torch_dispatch__)


class Dispatch:
    """See :class:`opguard.capture.mechanism.Mechanism`."""

    name: Mechanism = "dispatch"
    sees_all_threads = False

    def __init__(self, session: Session) -> None:
        self._session = session
        self._switch = Switch(collectives_only=session.mode == "collectives")
        interner = Interner()
        self.program = Program(interner, session.observer, session.fail)
        self.recorder = Recorder(
            interner, self.program, session.mode, session.submit, session.first_event
        )
        self.lock = self.recorder.lock
        self._main_mode: CaptureMode | None = None
        self.exported = self.recorder.exported
        self.storage_resized = self.recorder.storage_resized
        self.forget_values = self.recorder.forget_values
        self.waits = self.recorder.waits
        self.begin_state_pass = self.recorder.begin_state_pass
        self.emit_state = self.recorder.emit_state
        self.take_waiting = self.recorder.take_waiting
        self.flush = self.recorder.flush
        self.close = self.recorder.close

    @property
    def stopped(self) -> bool:
        """The limit of events was reached, and the program is being ended."""
        return self._switch.stopped

    def _new_mode(self) -> CaptureMode:
        mode = CaptureMode(self.recorder, self._switch, self._session.fail)
        torch_private.push_mode(mode)
        return mode

    def start(self) -> None:
        """Put a mode on this thread's stack."""
        self._main_mode = self._new_mode()

    def disarm(self) -> None:
        """Nothing more is captured."""
        self._switch.disarm()

    def stop(self) -> None:
        """Take the mode off again, wherever in the stack it stands."""
        if self._main_mode is not None:
            torch_private.remove_mode(self._main_mode)

    after_fork = stop

    def arm_thread(self) -> Callable[[], None]:
        """A mode of its own for the calling thread."""
        mode = self._new_mode()

        def disarm_thread() -> None:
            torch_private.remove_mode(mode)

        return disarm_thread

    def select(self, on: bool) -> None:
        """Whether operators are captured."""
        self._switch.on = on and self._switch.armed

    def set_limit(self, events: int) -> None:
        """End the program at the first operator after so many events."""
        self._switch.limit = events

    def patch(self, patches: Patches, entered: Callable[[str], None]) -> None:
        """What a mode cannot see, or must not be active in."""
        patch_graph_replay(patches, entered)
        patch_for_mode(patches, entered)
        torch_private.admit_higher_order_operators(patches, CaptureMode)

    def finish_collectives(self) -> None:
        """Write the events of collectives that are still in flight."""
        self.recorder.collectives.finish_all()

    def unfingerprinted(self) -> Counter[str]:
        """Records without fingerprint, by reason."""
        return self.recorder.reader.unfingerprinted

    @property
    def foreign_values(self) -> int:
        """Inputs after the first step that no event produced."""
        return self.recorder.foreign_values

    @property
    def lost_events(self) -> int:
        """Calls that something of the program's own interrupted while they were recorded."""
        return self.recorder.lost_events
