"""Module path, phase and call site of the operator that is being called on this thread."""

from __future__ import annotations

from types import FrameType
from typing import Final

from opguard.capture import torch_private
from opguard.capture.callsite import CallSites
from opguard.capture.modules import Program, ThreadPlace
from opguard.model import PHASES

OTHER, FORWARD, RECOMPUTE, BACKWARD, OPTIMIZER = range(len(PHASES))
ACCUMULATE: Final = 1 << 62
"""AccumulateGrad nodes have the highest sequence number there is."""
CHECKPOINT_FILE: Final = "torch/utils/checkpoint.py"

Place = tuple[int, int, int]
"""(module path id, phase code, stack id)."""


class Locator:
    """Answers where an operator call stands, from the program's state and the Python frames."""

    def __init__(self, program: Program, sites: CallSites) -> None:
        self._program = program
        self._sites = sites
        self._recomputes: dict[int, bool] = {}
        self._steps: dict[int, bool] = {}

    def locate(self, here: ThreadPlace, frame: FrameType | None) -> Place:
        """Place of the call made from ``frame``; remembers it for the nodes it made."""
        task = torch_private.graph_task_id()
        if task < 0:
            module = here.modules[-1][0] if here.modules else self._program.no_module
            stack = self._sites.of(frame)
            phase = FORWARD if here.modules else OTHER
            if here.optimizers and self._in_step(here, stack, frame):
                phase = OPTIMIZER
            place = (module, phase, stack)
        else:
            place = self._in_backward(here, frame, task)
        next_nr = torch_private.next_sequence_nr()
        if next_nr != here.next_nr:
            self._program.note_nodes(here, next_nr, place[0], place[2])
        return place

    def note_view(self, here: ThreadPlace, frame: FrameType | None) -> None:
        """A call that makes no event: its autograd nodes still need their site."""
        if torch_private.next_sequence_nr() != here.next_nr:
            self.locate(here, frame)

    def _in_backward(self, here: ThreadPlace, frame: FrameType | None, task: int) -> Place:
        program = self._program
        node = torch_private.current_node()
        nr = ACCUMULATE if node is None else node._sequence_nr()
        site = None if nr >= ACCUMULATE else program.forward_site(here, nr)
        if frame is None or frame.f_code is torch_private.engine_code:
            if site is not None:
                return site[0], BACKWARD, site[1]
            return self._accumulation(node), BACKWARD, self._sites.of(frame)
        # Python runs inside the node: a custom function's backward, a hook, a recomputation.
        stack = self._sites.of(frame)
        in_module = bool(here.modules) and here.modules[-1][1] == task
        if in_module or self._recomputing(stack, frame):
            module = here.modules[-1][0] if in_module else site[0] if site else program.no_module
            return module, RECOMPUTE, stack
        return (site[0] if site else self._accumulation(node)), BACKWARD, stack

    def _accumulation(self, node: object) -> int:
        variable = getattr(node, "variable", None)
        return (
            self._program.no_module if variable is None else self._program.parameter_path(variable)
        )

    def _in_step(self, here: ThreadPlace, stack: int, frame: FrameType | None) -> bool:
        """False if the step ended by an exception, which calls no hook."""
        found = self._steps.get(stack)
        if found is None:
            walked = frame
            while walked is not None and walked.f_code is not torch_private.step_code:
                walked = walked.f_back
            found = self._steps[stack] = walked is not None or torch_private.step_code is None
        if not found:
            here.optimizers.clear()
        return found

    def _recomputing(self, stack: int, frame: FrameType) -> bool:
        """True if a checkpoint's frame stands between the operator and the engine."""
        found = self._recomputes.get(stack)
        if found is None:
            found = False
            walked: FrameType | None = frame
            while walked is not None and walked.f_code is not torch_private.engine_code:
                if walked.f_code.co_filename.endswith(CHECKPOINT_FILE):
                    found = True
                    break
                walked = walked.f_back
            self._recomputes[stack] = found
        return found
