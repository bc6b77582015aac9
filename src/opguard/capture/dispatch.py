"""The mechanism ``dispatch``: a TorchDispatchMode a thread.

A mode changes some programs (DESIGN section 3); what can be kept unchanged from here is: calls on
subclasses desugar, composites under inference mode run through their own kernel, compiled
functions stay compiled, and a mode the program left on the stack stays there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from torch.utils._python_dispatch import TorchDispatchMode

from opguard.capture import torch_private
from opguard.capture.blame import raised_by_us
from opguard.capture.call import Call
from opguard.capture.operators import Kind, Operator
from opguard.capture.recorder import Recorder

EVENT: Final = Kind.EVENT
NO_LIMIT: Final = sys.maxsize


class StopProgram(SystemExit):
    """``--stop-after`` is reached: ends the program as ``sys.exit(0)`` would."""


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
        if switch.collectives_only and not operator.collective:
            if recorder.collectives.pending:
                self._guarded(recorder.touch, operator, args, kwargs)
            return func(*args, **kwargs)
        if operator.may_view:
            return self._maybe_view(operator, func, args, kwargs, frame)
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


def install(mode: CaptureMode) -> None:
    """Put ``mode`` on this thread's stack."""
    torch_private.push_mode(mode)


def uninstall(mode: CaptureMode) -> None:
    """Take it off again, wherever in the stack it stands."""
    torch_private.remove_mode(mode)
