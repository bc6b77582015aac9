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
from opguard.capture.blame import raised_by_us
from opguard.capture.identity import ByIdentity
from opguard.capture.interning import Interner
from opguard.capture.patches import Patches

WRAPPER_ATTRIBUTES: Final = frozenset({
    "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
})  # fmt: skip
PARALLEL_WRAPPERS: Final = frozenset({
    "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel",
})  # fmt: skip
"""Classes whose attribute ``module`` is left out of paths."""
MOST_SITES: Final = 1 << 18
"""Forward sites kept for the backward pass of a program that never steps an optimizer."""


class Observer(Protocol):
    """Who wants to know of modules and optimizers (the final state)."""

    def saw_module(self, module: torch.nn.Module, step: int) -> None:
        """An outermost module is called."""

    def saw_optimizer(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """An optimizer makes a step."""

    def step_finished(self, step: int) -> None:
        """The next step begins."""


class Mirror(Protocol):
    """Who has to know of this thread's place without asking Python (the C++ recorder)."""

    def enter_module(self, path: int) -> None:
        """A module is called."""

    def leave_modules(self, depth: int) -> None:
        """So many calls are left."""

    def set_optimizers(self, count: int) -> None:
        """So many optimizer steps are running."""

    def begin_step(self, step: int) -> None:
        """The next step begins."""

    def name_parameter(self, parameter: torch.Tensor, path: int) -> None:
        """A parameter's path."""


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

    def __init__(
        self, interner: Interner, observer: Observer, fail: Callable[[BaseException], None],
        mirror: Mirror | None = None,
    ) -> None:  # fmt: skip
        """``fail`` is told of a defect in a hook, which must not reach the program."""
        self._fail = fail
        self._mirror = mirror
        self._interner = interner
        self._observer = observer
        self._threads: list[ThreadPlace] = []
        self.places = Places(self._register_thread)
        self.step = 0
        self._counts_itself = False
        self._first_optimizer: weakref.ref[Any] | None = None
        self._paths: ByIdentity[ByIdentity[int]] = ByIdentity()
        self._parameters: ByIdentity[int] = ByIdentity()
        self._hooks: list[Callable[..., None]] = []
        self._quiet = Patches()
        """``torch.compile(module)`` warns of global hooks, which the program did not install."""
        self.no_module = interner.intern("module", "")

    def _register_thread(self) -> ThreadPlace:
        place = ThreadPlace(len(self._threads))
        self._threads.append(place)
        return place

    def arm(self) -> None:
        """Install the hooks."""
        hook = self._hook
        self._quiet.replace(nn_module, "_has_any_global_hook", torch_private.any_global_hook())
        enter, leave = hook(self._enter_module), hook(self._leave_module)
        before, after = hook(self._enter_step), hook(self._leave_step)
        # Kept first: what the program's signal handlers raise may come in between.
        self._hooks = [enter, leave, before, after]
        nn_module.register_module_forward_pre_hook(enter)
        # Checkpoint stops a recomputation by an exception: the hook must run then too.
        nn_module.register_module_forward_hook(leave, always_call=True)
        torch_optimizer.register_optimizer_step_pre_hook(before)
        torch_optimizer.register_optimizer_step_post_hook(after)

    def _hook(self, observe: Callable[..., None]) -> Callable[..., None]:
        """A hook that a compiler may inline, where it does nothing; elsewhere it is not traced."""
        fail = self._fail

        def hook(*args: Any) -> None:
            if torch.compiler.is_compiling():
                return
            tracer = torch_private.set_tracer(None)
            try:
                observe(*args)
            except Exception as error:
                if not raised_by_us(error):
                    raise
                fail(error)
            finally:
                if tracer is not None:
                    torch_private.set_tracer(tracer)

        torch_private.leave_untraced(hook)
        return hook

    def disarm(self) -> None:
        """Remove the hooks."""
        torch_private.remove_global_hooks(self._hooks)
        self._hooks = []
        self._quiet.restore()

    def set_step(self, step: int) -> None:
        """The program counts its steps itself from now on."""
        self._counts_itself = True
        if step != self.step:
            self.step = step
            self._new_step()

    def _new_step(self) -> None:
        for place in self._threads:
            place.forward_sites.clear()
        if self._mirror is not None:
            self._mirror.begin_step(self.step)
        self._observer.step_finished(self.step)

    # Modules

    def _enter_module(self, module: torch.nn.Module, _args: Any) -> None:
        place = self.places.here
        if place.modules:
            root = place.modules[0][2]
        else:
            root = module
            self._observer.saw_module(module, self.step)
        path = self._path(root, module, place)
        place.modules.append((path, torch_private.graph_task_id(), module))
        if self._mirror is not None:
            self._mirror.enter_module(path)

    def _leave_module(self, module: torch.nn.Module, _args: Any, _output: Any) -> None:
        modules = self.places.here.modules
        for position in range(len(modules) - 1, -1, -1):
            if modules[position][2] is module:
                del modules[position:]
                if self._mirror is not None:
                    self._mirror.leave_modules(position)
                return

    def _path(self, root: torch.nn.Module, module: torch.nn.Module, place: ThreadPlace) -> int:
        known = self._paths.get(root)
        found = None if known is None else known.get(module)
        if found is None:
            known = self._name(root)
            found = known.get(module)
            if found is None:
                parent = place.modules[-1][0] if place.modules else self.no_module
                name = f"{self._interner.text('module', parent)}.{type(module).__name__}"
                found = self._interner.intern("module", name)
                known.set(module, found)
        return found

    def _name(self, root: torch.nn.Module) -> ByIdentity[int]:
        """Path of every module and parameter below ``root``."""
        paths = self._paths.get(root)
        if paths is None:
            paths = ByIdentity()
            self._paths.set(root, paths)
        base = type(unwrap(root)).__name__
        for name, module in named_modules(root):
            path = ".".join([base, *_attributes(root, name)])
            paths.set(module, self._interner.intern("module", path))
            for attribute, parameter in module._parameters.items():
                if parameter is not None and self._parameters.get(parameter) is None:
                    named = self._interner.intern("module", f"{path}.{attribute}")
                    self._parameters.set(parameter, named)
                    if self._mirror is not None:
                        self._mirror.name_parameter(parameter, named)
        return paths

    def parameter_path(self, parameter: Any) -> int:
        """Path id of a parameter met in some module, else that of no module."""
        found = self._parameters.get(parameter)
        return self.no_module if found is None else found

    # Optimizers

    def _enter_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        place = self.places.here
        if optimizer in place.optimizers:  # an earlier step ended by an exception
            del place.optimizers[place.optimizers.index(optimizer) :]
        place.optimizers.append(optimizer)
        if self._mirror is not None:
            self._mirror.set_optimizers(len(place.optimizers))
        self._observer.saw_optimizer(optimizer, self.step)
        if self._first_optimizer is None:
            self._first_optimizer = weakref.ref(optimizer)

    def _leave_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        place = self.places.here
        if optimizer in place.optimizers:
            del place.optimizers[place.optimizers.index(optimizer) :]
        if self._mirror is not None:
            self._mirror.set_optimizers(len(place.optimizers))
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


def named_modules(root: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """As ``root.named_modules()``, which needs modules that are hashable."""
    found: list[tuple[str, torch.nn.Module]] = []
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((name, module))
        children = [
            (f"{name}.{attribute}" if name else attribute, child)
            for attribute, child in module._modules.items()
            if child is not None
        ]
        waiting += reversed(children)
    return found


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """The program's module inside compile and parallel wrappers."""
    while True:
        # Not by getattr, which may be the program's own.
        children = module.__dict__.get("_modules", {})
        inner = next((children[name] for name in WRAPPER_ATTRIBUTES if name in children), None)
        if inner is None and type(module).__name__ in PARALLEL_WRAPPERS:
            inner = children.get("module")
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
        children = getattr(owner, "__dict__", {}).get("_modules", {})
        owner = children[attribute] if attribute in children else None  # noqa: SIM401  (no `get` in scripted ones)
    return kept
