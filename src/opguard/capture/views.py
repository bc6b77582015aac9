"""Which outputs are views of an input: these are no new values."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch

from opguard.capture.call import TENSOR, kind_of, leaves
from opguard.capture.torch_private import storage_key
from opguard.capture.traits import traits
from opguard.model import Reason

Parts = Callable[[torch.Tensor], "list[tuple[int, torch.Tensor]] | Reason"]


def is_plain_view(args: Any, result: Any) -> bool:
    """A declared view, or several, of its first argument. Nothing is read: what a collective has
    in flight is not touched."""
    if not args or kind_of(args[0]) != TENSOR or not traits(args[0]).plain:
        return False
    key = storage_key(args[0].untyped_storage())
    views = [view for _, view in leaves(result, "")]
    return bool(views) and all(
        kind_of(view) == TENSOR
        and traits(view).plain
        and storage_key(view.untyped_storage()) == key
        for view in views
    )


def are_views(result: Any, storages: Container[int], parts: Parts) -> bool:
    """Every output shares its storage with an input, of which these are the keys. ``parts(tensor)``
    gives what a sparse, nested or quantized one is made of."""
    tensors = 0
    for _, value in leaves(result, ""):
        if kind_of(value) == TENSOR:
            tensors += 1
            if not _is_view(value, storages, parts):
                return False
        elif isinstance(value, (bool, int, float, complex)):
            return False
    return tensors > 0


def _is_view(tensor: torch.Tensor, storages: Container[int], parts: Parts) -> bool:
    kind = traits(tensor)
    if kind.plain:
        return storage_key(tensor.untyped_storage()) in storages
    if kind.dataless:
        return True
    found = parts(tensor)
    return not isinstance(found, Reason) and all(
        storage_key(part.untyped_storage()) in storages for _, part in found
    )
