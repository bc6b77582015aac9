"""Attributes of torch that capture replaces while it is on, each with its reason."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from opguard.capture import torch_private
from opguard.capture.imports import when_imported


class Patches:
    """Replaces attributes and puts them back in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def before_call(self, owner: Any, name: str, observe: Callable[..., None]) -> None:
        """Call ``observe(*args)`` before each call of ``owner.name``; nothing if there is none."""
        original = getattr(owner, name, None)
        if original is None:
            return

        def observed(*args: Any, **kwargs: Any) -> Any:
            observe(*args)
            return original(*args, **kwargs)

        self.replace(owner, name, observed)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until :meth:`restore`."""
        missing = object()
        before = vars(owner).get(name, missing)

        def undo() -> None:
            if before is missing:
                if name in vars(owner):  # not after an interruption
                    delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)  # first: what signal handlers raise may come in between
        setattr(owner, name, value)

    def replace_config(self, config: Any, name: str, value: Any) -> None:
        """Set an entry of one of torch's config modules until :meth:`restore`."""
        before = getattr(config, name)
        self._undo.append(lambda: setattr(config, name, before))
        setattr(config, name, value)

    def later(self, undo: Callable[[], None]) -> None:
        """Also undo this."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Undo everything."""
        while self._undo:
            self._undo[-1]()  # again, if a signal handler of the program raises
            self._undo.pop()


def patch_exports(patches: Patches, exported: Callable[[torch.Tensor], None]) -> None:
    """Memory handed out by DLPack can be written by others, and nothing in torch shows it."""
    patches.before_call(torch.Tensor, "__dlpack__", lambda tensor, *_: exported(tensor))
    for owner in (torch, torch.utils.dlpack):
        patches.before_call(owner, "to_dlpack", lambda tensor, *_: exported(tensor))


def patch_resizing(patches: Patches, resized: Callable[[torch.UntypedStorage], None]) -> None:
    """A storage that is freed and grown again has its size back, and other bytes."""
    original = torch.UntypedStorage.resize_

    def resize(storage: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(storage, *args, **kwargs)
        resized(storage)
        return result

    patches.replace(torch.UntypedStorage, "resize_", resize)


def patch_graph_replay(patches: Patches, entered: Callable[[str], None]) -> None:
    """A CUDA graph runs kernels that no operator call shows."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    if graph is not None:
        patches.before_call(graph, "replay", lambda *_: entered("cuda_graph"))


def patch_for_mode(patches: Patches, entered: Callable[[str], None]) -> None:
    """What a dispatch mode cannot see, or must not be active in."""
    # Under any dispatch mode these fail for operators that are given numbers.
    for name in ("trace", "trace_module"):
        patches.replace(torch.jit, name, _unseen(getattr(torch.jit, name), entered, name))

    def inductor_imported() -> None:
        torch_private.wrap_compiled_regions(patches, entered)

    patches.later(when_imported(torch_private.compiled_graph_module(), inductor_imported))


def _unseen(call: Callable[..., Any], entered: Callable[[str], None], name: str) -> Any:
    """``call`` as an opaque region: no mode sees what it does."""

    @functools.wraps(call)
    def unseen(*args: Any, **kwargs: Any) -> Any:
        entered(f"torch.jit.{name}")
        with torch_private.disabled_modes():
            return call(*args, **kwargs)

    return unseen


def patch_seeding(patches: Patches, seeded: Callable[[str], None]) -> None:
    """A generator that the program seeds has to end in the same state in every run."""

    def observe(name: str) -> Callable[..., None]:
        def given(*seed: Any) -> None:
            if seed and seed[0] is not None:  # without a seed it comes from the system
                seeded(name)

        return given

    patches.before_call(random, "seed", observe("rng.python"))
    for owner in (torch, torch.random):
        patches.before_call(owner, "manual_seed", observe("rng.torch.cpu"))

    def numpy_imported() -> None:
        patches.before_call(sys.modules["numpy.random"], "seed", observe("rng.numpy"))

    patches.later(when_imported("numpy.random", numpy_imported))
