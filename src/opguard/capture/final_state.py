"""The state that a program leaves behind: parameters, gradients, buffers, optimizer state,
watched tensors and random generators, read afresh when the capture ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import torch

from opguard.capture.modules import unwrap
from opguard.capture.random_state import process_states

RELEASE_AFTER: Final = 2
"""Finished steps after its last use at which an object that only we hold is let go."""
MOST_HELD: Final = 256
"""Modules held before those that only we hold are let go at once: a program that never steps an
optimizer may make a new one for every call."""
Entry = tuple[str, Any]
"""Name, and a tensor, a number or bytes."""


class Held:
    """A module or optimizer, and the step of its last use."""

    __slots__ = ("last_step", "thing")

    def __init__(self, thing: Any, step: int) -> None:
        self.thing = thing
        self.last_step = step

    def is_ours_alone(self) -> bool:
        """Nobody else refers to it."""
        return sys.getrefcount(self.thing) <= _ALONE


_SAMPLE: Final = Held(object(), 0)
_ALONE: Final = sys.getrefcount(_SAMPLE.thing)
"""Counted here, since it depends on how the interpreter passes arguments."""


class FinalState:
    """Holds every outermost module and every optimizer, since models often live in a function."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._watched: dict[str, torch.Tensor] = {}
        self._look_at = MOST_HELD

    def saw(self, thing: Any, step: int) -> None:
        """An outermost module is called, or an optimizer makes a step."""
        held = self._held.get(id(thing))
        if held is not None:
            held.last_step = step
        elif not isinstance(thing, torch.nn.Module) or _has_state(thing):
            self._held[id(thing)] = Held(thing, step)

    @property
    def crowded(self) -> bool:
        """So many are held that it is time to look which of them the program has dropped."""
        return len(self._held) > self._look_at

    def watch(self, name: str, tensor: torch.Tensor) -> None:
        """Have ``tensor`` read at the end as well."""
        self._watched[name] = tensor

    def released(self, step: int) -> Iterator[Iterator[Entry]]:
        """Entries of what only we hold and the program no longer uses; it is then let go."""
        crowded = self.crowded
        for key in list(self._held):
            if step - self._held[key].last_step < RELEASE_AFTER and not crowded:
                continue
            if self._held[key].is_ours_alone():
                yield _entries_of(self._held.pop(key).thing, {})
        self._look_at = max(MOST_HELD, 2 * len(self._held))

    def all(self) -> Iterator[Iterator[Entry]]:
        """Entries of everything that is still held, then of the random generators."""
        names: dict[int, str] = {}
        things = [held.thing for held in self._held.values()]
        for thing in things:
            if isinstance(thing, torch.nn.Module):
                yield _entries_of(thing, names)
        for thing in things:
            if not isinstance(thing, torch.nn.Module):
                yield _entries_of(thing, names)
        yield iter(self._watched.items())
        yield process_states()
        self._held.clear()
        self._watched.clear()


def _has_state(module: torch.nn.Module) -> bool:
    """False for loss functions and the like, which programs make anew at every step."""
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def _entries_of(thing: Any, names: dict[int, str]) -> Iterator[Entry]:
    if isinstance(thing, torch.nn.Module):
        yield from _module_state(thing, names)
    else:
        yield from _optimizer_state(thing, names)


def _module_state(module: torch.nn.Module, names: dict[int, str]) -> Iterator[Entry]:
    base = type(unwrap(module)).__name__
    module = unwrap(module)
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            continue
        names[id(parameter)] = f"{base}.{name}"
        yield f"{base}.{name}", parameter
        if parameter.grad is not None:
            yield f"{base}.{name}.grad", parameter.grad
    for name, buffer in module.named_buffers():
        if not torch.nn.parameter.is_lazy(buffer):
            yield f"{base}.{name}", buffer


def _optimizer_state(optimizer: Any, names: dict[int, str]) -> Iterator[Entry]:
    base = type(optimizer).__name__
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for position, parameter in enumerate(parameters):
        name = names.get(id(parameter), f"params[{position}]")
        if id(parameter) not in names:
            yield f"{base}.{name}", parameter
            if parameter.grad is not None:
                yield f"{base}.{name}.grad", parameter.grad
        state = optimizer.state.get(parameter, {})
        for key, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, (torch.Tensor, bool, int, float, complex)):
                yield f"{base}.{name}.{key}", value
