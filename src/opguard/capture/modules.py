"""Where in the program an operator runs: module path, phase and step.

Global module and optimizer hooks keep a stack a thread; hooks return at once while a compiler
traces them, so that compiled functions do not change.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as torch_optimizer

from opguard.capture import torch_private
from opguard.capture.interning import Interner

WRAPPER_ATTRIBUTES: Final = frozenset({
    "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
})  # fmt: skip
PARALLEL_WRAPPERS: Final = frozenset({
    "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel",
})  # fmt: skip
"""Classes whose attribute ``module`` is left out of paths."""
MOST_SITES: Final = 1 << 18
"""Forward sites kept for the backward pass of a program that never steps an optimizer."""

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class Observer(Protocol):
    """Who wants to know of modules and optimizers (the final state)."""

    def saw_module(self, module: torch.nn.Module, step: int) -> None:
        """An outermost module is called."""

    def saw_optimizer(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """An optimizer makes a step."""

    def step_finished(self, step: int) -> None:
        """The next step begins."""


class ThreadPlace:
    """One thread's place in the program."""

    __slots__ = ("forward_sites", "modules", "next_nr", "optimizers", "ordinal")

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.modules: list[tuple[int, int, Any]] = []
        """(module path id, graph task at entry, module), outermost first."""
        self.optimizers: list[Any] = []
        self.next_nr = torch_private.next_sequence_nr()
        self.forward_sites: dict[int, tuple[int, int]] = {}
        """Autograd sequence number to (module path id, stack id) of the forward call."""


class Places(threading.local):
    """This thread's :class:`ThreadPlace`, made when first asked for."""

    here: ThreadPlace

    def __init__(self, register: Callable[[], ThreadPlace]) -> None:
        self.here = register()


class Program:
    """Follows modules, optimizers and steps of the whole process."""

    def __init__(self, interner: Interner, observer: Observer) -> None:
        self._interner = interner
        self._observer = observer
        self._threads: list[ThreadPlace] = []
        self.places = Places(self._register_thread)
        self.step = 0
        self._counts_itself = False
        self._first_optimizer: weakref.ref[Any] | None = None
        self._paths: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._parameters: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._hooks: list[Any] = []
        self.no_module = interner.intern("module", "")

    def _register_thread(self) -> ThreadPlace:
        place = ThreadPlace(len(self._threads))
        self._threads.append(place)
        return place

    def arm(self) -> None:
        """Install the hooks."""
        self._hooks = [
            nn_module.register_module_forward_pre_hook(self._enter_module),
            # Checkpoint stops a recomputation by an exception: the hook must run then too.
            nn_module.register_module_forward_hook(self._leave_module, always_call=True),
            torch_optimizer.register_optimizer_step_pre_hook(self._enter_step),
            torch_optimizer.register_optimizer_step_post_hook(self._leave_step),
        ]

    def disarm(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def set_step(self, step: int) -> None:
        """The program counts its steps itself from now on."""
        self._counts_itself = True
        if step != self.step:
            self.step = step
            self._new_step()

    def _new_step(self) -> None:
        for place in self._threads:
            place.forward_sites.clear()
        self._observer.step_finished(self.step)

    # Modules

    def _enter_module(self, module: torch.nn.Module, _args: Any) -> None:
        if _is_compiling():
            return
        place = self.places.here
        if place.modules:
            root = place.modules[0][2]
        else:
            root = module
            self._observer.saw_module(module, self.step)
        path = self._path(root, module, place)
        place.modules.append((path, torch_private.graph_task_id(), module))

    def _leave_module(self, module: torch.nn.Module, _args: Any, _output: Any) -> None:
        if _is_compiling():
            return
        modules = self.places.here.modules
        for position in range(len(modules) - 1, -1, -1):
            if modules[position][2] is module:
                del modules[position:]
                return

    def _path(self, root: torch.nn.Module, module: torch.nn.Module, place: ThreadPlace) -> int:
        known = self._paths.get(root)
        found = None if known is None else known.get(module)
        if found is None:
            found = self._name(root).get(module)
        if found is None:
            parent = place.modules[-1][0] if place.modules else self.no_module
            name = f"{self._text(parent)}.{type(module).__name__}"
            found = self._paths[root][module] = self._interner.intern("module", name)
        return found

    def _text(self, path: int) -> str:
        return self._interner.text("module", path)

    def _name(self, root: torch.nn.Module) -> weakref.WeakKeyDictionary[Any, int]:
        """Path of every module and parameter below ``root``."""
        paths = self._paths.setdefault(root, weakref.WeakKeyDictionary())
        base = type(unwrap(root)).__name__
        for name, module in root.named_modules():
            path = ".".join([base, *_attributes(root, name)])
            paths[module] = self._interner.intern("module", path)
            for attribute, parameter in module.named_parameters(recurse=False):
                named = self._interner.intern("module", f"{path}.{attribute}")
                held = self._parameters.get(id(parameter))
                if held is None or held[0]() is not parameter:
                    self._parameters[id(parameter)] = (weakref.ref(parameter), named)
        return paths

    def parameter_path(self, parameter: Any) -> int:
        """Path id of a parameter met in some module, else that of no module."""
        found = self._parameters.get(id(parameter))
        return found[1] if found is not None and found[0]() is parameter else self.no_module

    # Optimizers

    def _enter_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if _is_compiling():
            return
        place = self.places.here
        if optimizer in place.optimizers:  # an earlier step ended by an exception
            del place.optimizers[place.optimizers.index(optimizer) :]
        place.optimizers.append(optimizer)
        self._observer.saw_optimizer(optimizer, self.step)
        if self._first_optimizer is None:
            self._first_optimizer = weakref.ref(optimizer)

    def _leave_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if _is_compiling():
            return
        place = self.places.here
        if optimizer in place.optimizers:
            del place.optimizers[place.optimizers.index(optimizer) :]
        first = self._first_optimizer
        if first is None or first() is not optimizer or place.optimizers or self._counts_itself:
            return
        self.step += 1
        self._new_step()

    # Forward sites of backward events

    def note_nodes(self, place: ThreadPlace, next_nr: int, module: int, stack: int) -> None:
        """Autograd nodes were made since the last call; the first event of a node wins."""
        sites = place.forward_sites
        if len(sites) > MOST_SITES:
            sites.clear()
        for nr in range(max(place.next_nr, next_nr - 8), next_nr):
            sites[nr] = (module, stack)
        place.next_nr = next_nr

    def forward_site(self, place: ThreadPlace, nr: int) -> tuple[int, int] | None:
        """(module path id, stack id) of the forward call that made node ``nr``."""
        found = place.forward_sites.get(nr)
        if found is None:
            for other in self._threads:
                if (found := other.forward_sites.get(nr)) is not None:
                    break
        return found


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """The program's module inside compile and parallel wrappers."""
    while True:
        inner: Any = None
        for attribute in WRAPPER_ATTRIBUTES:
            inner = inner or getattr(module, attribute, None)
        if inner is None and type(module).__name__ in PARALLEL_WRAPPERS:
            inner = getattr(module, "module", None)
        if not isinstance(inner, torch.nn.Module) or inner is module:
            return module
        module = inner


def _attributes(root: torch.nn.Module, name: str) -> list[str]:
    """Attribute names from ``root`` to a module, without those of wrappers."""
    kept: list[str] = []
    owner: Any = root
    for attribute in name.split(".") if name else []:
        wrapped = attribute in WRAPPER_ATTRIBUTES or (
            attribute == "module" and type(owner).__name__ in PARALLEL_WRAPPERS
        )
        if not wrapped:
            kept.append(attribute)
        owner = getattr(owner, attribute, None)
    return kept
