"""The state that a program leaves behind: parameters, gradients, buffers, optimizer state,
watched tensors and random generators, read afresh when the capture ends."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from opguard.capture import torch_private
from opguard.capture.modules import named_modules, unwrap
from opguard.capture.random_state import process_states

RELEASE_AFTER: Final = 2
"""Finished steps after its last use at which an object that only we hold is let go."""
MOST_AT_ALL: Final = 1024
"""Objects held before the oldest are read and let go though others may refer to them, such as
models that refer to themselves; used again, they are held again."""
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
        if len(self._held) > MOST_AT_ALL:
            oldest = sorted(self._held, key=lambda key: self._held[key].last_step)
            for key in oldest[: MOST_AT_ALL // 2]:
                yield _entries_of(self._held.pop(key).thing, {})
        self._look_at = min(max(MOST_HELD, 2 * len(self._held)), MOST_AT_ALL)

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


def is_dataless(value: Any) -> bool:
    """Meta and fake tensors hold nothing that could be compared."""
    return isinstance(value, torch.Tensor) and torch_private.is_fake(value)


def _has_state(module: torch.nn.Module) -> bool:
    """False for loss functions and the like, which programs make anew at every step."""
    return any(part._parameters or part._buffers for _, part in named_modules(module))


def _entries_of(thing: Any, names: dict[int, str]) -> Iterator[Entry]:
    if isinstance(thing, torch.nn.Module):
        yield from _module_state(thing, names)
    else:
        yield from _optimizer_state(thing, names)


def _module_state(module: torch.nn.Module, names: dict[int, str]) -> Iterator[Entry]:
    module = unwrap(module)
    base = type(module).__name__
    buffers: list[Entry] = []
    for path, part in named_modules(module):
        prefix = ".".join(filter(None, (base, path)))
        for name, parameter in part._parameters.items():
            if parameter is None or torch.nn.parameter.is_lazy(parameter):
                continue
            names.setdefault(id(parameter), f"{prefix}.{name}")
            yield f"{prefix}.{name}", parameter
            if parameter.grad is not None:
                yield f"{prefix}.{name}.grad", parameter.grad
        buffers += [
            (f"{prefix}.{name}", buffer)
            for name, buffer in part._buffers.items()
            if buffer is not None and not torch.nn.parameter.is_lazy(buffer)
        ]
    yield from buffers


def _optimizer_state(optimizer: Any, names: dict[int, str]) -> Iterator[Entry]:
    base = type(optimizer).__name__
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for position, parameter in enumerate(parameters):
        name = names.get(id(parameter), f"params[{position}]")
        if id(parameter) not in names:
            yield f"{base}.{name}", parameter
            if parameter.grad is not None:
                yield f"{base}.{name}.grad", parameter.grad
        yield from _leaves(f"{base}.{name}", optimizer.state.get(parameter, {}))
    own = {key: value for key, value in optimizer.state.items() if isinstance(key, str)}
    yield from _leaves(base, own)
    for position, group in enumerate(optimizer.param_groups):
        # Switches such as foreach choose how a step is computed, and are no state.
        options = {
            key: value
            for key, value in group.items()
            if key != "params" and not isinstance(value, bool)
        }
        yield from _leaves(f"{base}.param_groups[{position}]", options)


def _leaves(name: str, value: Any) -> Iterator[Entry]:
    """Tensors and numbers in nested dictionaries, lists and tuples (LBFGS keeps lists)."""
    if isinstance(value, (torch.Tensor, bool, int, float, complex)):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item)
    elif isinstance(value, (list, tuple, deque)):
        for position, item in enumerate(value):
            yield from _leaves(f"{name}[{position}]", item)
