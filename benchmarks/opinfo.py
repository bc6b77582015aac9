"""PyTorch's OpInfo samples as repeatable calls, and control over what fresh memory holds.

Needs ``expecttest``, which ``torch.testing._internal`` imports.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

KINDS: Final = ("function", "no_grad", "inplace", "out", "error")
FILLS: Final = (0x55, 0xAA)
_M_PERTURB: Final = -6
_TUNABLES: Final = "glibc.malloc.tcache_count=0"


def fill_fresh_memory(pattern: int) -> None:
    """Every byte that malloc hands out from now on holds ``pattern`` (glibc; 0x00: as it comes)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_PERTURB, pattern ^ 0xFF if pattern else 0)


def restart_without_thread_cache() -> None:
    """Start this program anew: malloc fills no memory that comes from its thread cache."""
    if sys.platform == "linux" and os.environ.get("GLIBC_TUNABLES") != _TUNABLES:
        os.environ["GLIBC_TUNABLES"] = _TUNABLES
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606  (this very program)


def seed() -> None:
    """Every generator that samples and operators draw from."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def operators(pattern: str) -> list[Any]:
    """OpInfos whose full name (``linalg.norm.subgradients_at_zero``) matches one of the globs."""
    globs = pattern.split(",")
    return [op for op in op_db if any(fnmatchcase(full_name(op), glob) for glob in globs)]


def full_name(op: Any) -> str:
    """Name with variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


@dataclass
class Call:
    """One call of an operator on one sample."""

    kind: str
    number: int
    call: Callable[[], Any]
    inputs: list[torch.Tensor]
    """Its tensors, in the order of the arguments."""

    @property
    def differentiable(self) -> list[torch.Tensor]:
        """Inputs that gradients are taken for."""
        return [tensor for tensor in self.inputs if tensor.requires_grad]


def calls(op: Any, dtype: torch.dtype, kinds: tuple[str, ...] = KINDS) -> list[Call]:
    """All calls for ``op``, on samples made anew: the same each time."""
    seed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(_calls(op, dtype, kinds))


def _calls(op: Any, dtype: torch.dtype, kinds: tuple[str, ...]) -> Iterator[Call]:
    if dtype not in op.supported_dtypes("cpu"):
        return
    for kind in kinds:
        if kind == "error":
            if op.error_inputs_func is not None:
                for number, error in enumerate(op.error_inputs("cpu")):
                    yield _call(kind, number, op.op, error.sample_input)
            continue
        function, grad = _variant(op, dtype, kind)
        if function is not None:
            for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)):
                if kind != "inplace" or isinstance(sample.input, torch.Tensor):
                    yield _call(kind, number, function, sample)


def _variant(op: Any, dtype: torch.dtype, kind: str) -> tuple[Callable[..., Any] | None, bool]:
    """What runs, and whether with gradients."""
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    if kind == "function":
        return op.op, grad
    if kind == "no_grad":
        return (op.op if grad else None), False
    if kind == "inplace":
        return (None if op.inplace_variant is None else _on_a_copy(op.inplace_variant)), grad
    return (_into_fresh(op.op) if op.supports_out else None), False


def _call(kind: str, number: int, function: Callable[..., Any], sample: Any) -> Call:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return Call(
        kind,
        number,
        lambda: function(sample.input, *sample.args, **sample.kwargs),
        [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)],
    )


def _on_a_copy(inplace: Callable[..., Any]) -> Callable[..., Any]:
    return lambda tensor, *args, **kwargs: inplace(tensor.clone(), *args, **kwargs)


def _into_fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        expected = function(*args, **kwargs)
        return function(*args, **kwargs, out=pytree.tree_map(torch.empty_like, expected))

    return call


def is_plain(tensor: torch.Tensor) -> bool:
    """Strided, with bytes of its own."""
    return not (
        tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.device.type == "meta"
    )


def logical_bytes(tensor: torch.Tensor) -> bytes:
    """Elements of a plain tensor in row-major order, conj and neg bits resolved."""
    dense = tensor.detach().resolve_conj().resolve_neg()
    # A copy, since contiguous() keeps strides of 0 where there is one element.
    dense = dense.clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()


def bits(value: Any) -> Any:
    """What must be equal for two results to be the same: every byte, NaN payloads too."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if type(value) is not torch.Tensor and not isinstance(value, torch.nn.Parameter):
        return repr(type(value))
    facts = (str(value.dtype), tuple(value.shape) if not value.is_nested else (), str(value.layout))
    return (*facts, tuple(_parts(value.detach())))


def _parts(tensor: torch.Tensor) -> Iterator[Any]:
    if tensor.is_nested:
        yield from map(bits, tensor.unbind())
    elif tensor.is_quantized:
        yield bits(tensor.int_repr())
    elif tensor.layout is torch.sparse_coo:
        yield bits(tensor._indices())
        yield bits(tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from map(bits, (tensor.crow_indices(), tensor.col_indices(), tensor.values()))
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from map(bits, (tensor.ccol_indices(), tensor.row_indices(), tensor.values()))
    elif tensor.device.type != "meta":
        yield logical_bytes(tensor) if is_plain(tensor) else repr(tensor.layout)
