"""From any tensor to its logical bytes and their fingerprint.

Everything here reads plain tensors as :func:`components` returns them. It never changes what it
reads: no autograd history, no version counter, no random state. The caller disables its
dispatch mode meanwhile, since reading may call operators (``aten.clone`` and the like).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import torch

from opguard.errors import CaptureError
from opguard.fingerprint import fallback, spec
from opguard.fingerprint.stage import Digest, digest_memory, resolved
from opguard.model import DTYPES, Reason

Components: TypeAlias = tuple[tuple[str, torch.Tensor], ...]
"""Slot suffix and plain strided tensor of each part that is fingerprinted on its own."""

_PLAIN_TYPES: Final = (torch.Tensor, torch.nn.Parameter)
_COMPRESSED_BY_ROW: Final = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED_BY_COLUMN: Final = (torch.sparse_csc, torch.sparse_bsc)
_JAGGED_PARTS: Final = ("_values", "_offsets", "_lengths")
"""Of a jagged tensor; what else it holds caches numbers and comes and goes."""
_PER_TENSOR: Final = (torch.per_tensor_affine, torch.per_tensor_symmetric)

_UNKNOWN_DTYPE: Final = DTYPES.index("unknown")
_DTYPE_CODES: Final = {
    getattr(torch, name): code
    for code, name in enumerate(DTYPES)
    if isinstance(getattr(torch, name, None), torch.dtype)
}
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By element size. Elements are moved as integers: torch cannot copy some dtypes (uint4),
warns at others (complex32), and moving floats need not keep every NaN."""


def dtype_code(dtype: torch.dtype) -> int:
    """Position of ``dtype`` in ``model.DTYPES``, or that of ``unknown``."""
    return _DTYPE_CODES.get(dtype, _UNKNOWN_DTYPE)


def components(t: torch.Tensor) -> Components | Reason:
    """What is fingerprinted of a tensor.

    Returns:
        ``(("", t),)`` for a strided tensor; for others the raw tensors they are made of, with
        names such as ``.indices``. A :class:`Reason` if there are no bytes to read.
    """
    if type(t) not in _PLAIN_TYPES:
        return _subclass_components(t)
    if t.layout is not torch.strided:
        return _sparse_components(t)
    if t.is_meta:
        return Reason.UNSUPPORTED
    if t.is_nested:
        return _nested_components(t)
    if t.is_quantized:
        return _quantized_components(t)
    return (("", t),) if _has_storage(t) else Reason.UNSUPPORTED


def is_freed(t: torch.Tensor) -> bool:
    """True if the memory behind a strided tensor is gone, so that reading it would crash.

    FSDP, for one, releases parameters by ``untyped_storage().resize_(0)``.
    """
    if t.numel() == 0:
        return False
    if t.is_contiguous():
        span = t.numel()
    else:
        span = 1 + sum(
            (size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True)
        )
    storage = t.untyped_storage()
    needed = (t.storage_offset() + span) * t.element_size()
    return storage.nbytes() < needed or storage.data_ptr() == 0


def dense_bytes(t: torch.Tensor) -> tuple[int, int, torch.Tensor]:
    """The logical bytes of a strided CPU tensor that is not freed.

    Returns:
        Their address, how many they are, and the tensor that keeps them alive: ``t`` itself
        where its memory is row-major already, else a copy.
    """
    if not t.is_contiguous() or t.is_neg() or t.is_conj():
        t = _row_major(t)
    return t.data_ptr(), t.nbytes, t


def fingerprint(t: torch.Tensor) -> Digest:
    """The fingerprint of a strided tensor on any device, hashed at once.

    Raises:
        CaptureError: its memory was freed.
    """
    if is_freed(t):
        msg = f"the memory of a tensor of shape {list(t.shape)} was freed"
        raise CaptureError(msg)
    if t.is_cpu:
        address, nbytes, _alive = dense_bytes(t)
        return digest_memory(address, nbytes)
    dense = _row_major(t)
    if dense.nbytes <= spec.SMALL_BYTES:
        return fingerprint(dense.cpu())
    mix, fold, regions = fallback.digest(dense)
    return resolved(mix, fold, regions=regions if dense.nbytes >= spec.REGION_BYTES else None)


def _row_major(t: torch.Tensor) -> torch.Tensor:
    """The same logical bytes, contiguous and without conj and neg bits; dtype may differ."""
    t = t.detach()
    if t.is_quantized:
        t = t.int_repr()
    if t.is_neg() or t.is_conj():
        return _flipped(t)
    if t.dtype is torch.complex128:
        # Copied whole it must lie at a multiple of 16, else torch crashes; views need not.
        t = torch.view_as_real(t)
    return t.view(_INTEGERS[t.element_size()]).contiguous()


def _flipped(t: torch.Tensor) -> torch.Tensor:
    """A row-major copy with the signs flipped that neg and conj bits only announce.

    As bits: torch's own resolution alters some NaNs, depending on where in memory they lie.
    """
    negative, conjugate = t.is_neg(), t.is_conj()
    t = t._neg_view() if negative else t
    t = t.conj() if conjugate else t
    t = torch.view_as_real(t) if t.is_complex() else t
    bits = t.view(_INTEGERS[t.element_size()]).clone(memory_format=torch.contiguous_format)
    sign = -1 << 8 * bits.element_size() - 1
    if negative:
        bits.bitwise_xor_(sign)
    if conjugate:
        bits[..., 1].bitwise_xor_(sign)
    return bits


def _has_storage(t: torch.Tensor) -> bool:
    """False for wrappers of functorch and functionalization, which have no bytes."""
    try:
        t.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


def _subclass_components(t: torch.Tensor) -> Components | Reason:
    # A subclass may log or alter what is called on it; that is for the program's calls alone.
    with torch._C.DisableTorchFunctionSubclass():
        if type(t).__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
            return components(t.as_subclass(torch.Tensor))
        if not hasattr(t, "__tensor_flatten__"):
            return Reason.UNSUPPORTED
        try:
            attributes, _context = t.__tensor_flatten__()
        except Exception:  # noqa: BLE001  (the program's code, which the program did not call)
            return Reason.UNSUPPORTED
        if t.layout is torch.jagged:
            attributes = [name for name in _JAGGED_PARTS if name in attributes]
        found: list[tuple[str, torch.Tensor]] = []
        for name in attributes:
            attribute = getattr(t, name)
            if not isinstance(attribute, torch.Tensor):
                continue  # a DTensor lists its mesh
            inner = components(attribute)
            if isinstance(inner, Reason):
                return inner
            prefix = "." + name.lstrip("_")
            found += [(prefix + suffix, part) for suffix, part in inner]
        return tuple(found)


def _sparse_components(t: torch.Tensor) -> Components | Reason:
    if t.is_meta:
        return Reason.UNSUPPORTED
    if t.layout is torch.sparse_coo:
        t = t.detach()
        return ((".indices", t._indices()), (".values", t._values()))
    if t.layout in _COMPRESSED_BY_ROW:
        names = ("crow_indices", "col_indices", "values")
    elif t.layout in _COMPRESSED_BY_COLUMN:
        names = ("ccol_indices", "row_indices", "values")
    else:
        return Reason.UNSUPPORTED
    # Its parts are detached, since detaching the whole makes a new one, and torch warns of each.
    with torch.no_grad():
        return tuple(("." + name, getattr(t, name)().detach()) for name in names)


def _nested_components(t: torch.Tensor) -> Components | Reason:
    """A strided nested tensor: its elements in row-major order, and the sizes of its parts."""
    sizes = t._nested_tensor_size()
    parts = t.detach().unbind()
    if any(is_freed(part) for part in parts):
        return Reason.FREED
    values = [part.reshape(-1) for part in parts] or [
        torch.empty(0, dtype=t.dtype, device=t.device)
    ]
    return ((".values", torch.cat(values)), (".sizes", sizes))


def _quantized_components(t: torch.Tensor) -> Components | Reason:
    if t.numel() and not t.untyped_storage().nbytes():
        return Reason.FREED
    if t.qscheme() in _PER_TENSOR:
        scale = torch.tensor(t.q_scale(), dtype=torch.float64, device="cpu")
        zero_point = torch.tensor(t.q_zero_point(), dtype=torch.int64, device="cpu")
    else:
        scale, zero_point = t.q_per_channel_scales(), t.q_per_channel_zero_points()
    return ((".int_repr", t.int_repr()), (".scale", scale), (".zero_point", zero_point))
