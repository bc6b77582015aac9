"""Attributes of torch that capture replaces while it is on, each with its reason."""

from __future__ import annotations

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
        setattr(owner, name, value)

        def undo() -> None:
            if before is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def replace_config(self, config: Any, name: str, value: Any) -> None:
        """Set an entry of one of torch's config modules until :meth:`restore`."""
        before = getattr(config, name)
        setattr(config, name, value)
        self._undo.append(lambda: setattr(config, name, before))

    def later(self, undo: Callable[[], None]) -> None:
        """Also undo this."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Undo everything."""
        while self._undo:
            self._undo.pop()()


def patch_exports(patches: Patches, exported: Callable[[torch.Tensor], None]) -> None:
    """Memory handed out by DLPack can be written by others, and nothing in torch shows it."""
    patches.before_call(torch.Tensor, "__dlpack__", lambda tensor, *_: exported(tensor))
    patches.before_call(torch.utils.dlpack, "to_dlpack", lambda tensor, *_: exported(tensor))


def patch_opaque_regions(patches: Patches, entered: Callable[[str], None]) -> None:
    """What runs kernels that no operator call shows."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    if graph is not None:
        patches.before_call(graph, "replay", lambda *_: entered("cuda_graph"))
    patches.later(when_imported("torch._dynamo", _exclude_ourselves))

    def inductor_imported() -> None:
        torch_private.wrap_compiled_regions(patches, entered)

    patches.later(when_imported("torch._inductor.output_code", inductor_imported))


def _exclude_ourselves() -> None:
    torch_private.exclude_from_tracing("opguard")
