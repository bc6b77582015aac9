"""Any tensor to its logical bytes, against elements picked one by one from raw storage."""

from __future__ import annotations

import ctypes
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fingerprint_reference import expected
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard.errors import CaptureError
from opguard.fingerprint import fallback
from opguard.fingerprint.stage import Stage
from opguard.fingerprint.tensor import (
    components,
    dense_bytes,
    dtype_code,
    fingerprint,
    is_freed,
)
from opguard.model import DTYPES, Reason

ALL_DTYPES = [
    getattr(torch, name) for name in DTYPES if isinstance(getattr(torch, name, None), torch.dtype)
]
# Quantized tensors cannot be made as views of bytes; they have tests of their own.
STRIDED_DTYPES = [d for d in ALL_DTYPES if not str(d).startswith(("torch.qint", "torch.quint"))]
NEGATABLE = (torch.float16, torch.float32, torch.float64)


def logical_bytes(
    raw: bytes, dtype: torch.dtype, shape: list[int], strides: list[int], offset: int, flip: bool
) -> bytes:
    """Elements in row-major order; ``flip`` their last bit: a (last) sign."""
    size = dtype.itemsize
    out = bytearray()
    for index in itertools.product(*(range(n) for n in shape)):
        at = (offset + sum(i * s for i, s in zip(index, strides, strict=True))) * size
        element = bytearray(raw[at : at + size])
        if flip:
            element[-1] ^= 0x80
        out += element
    return bytes(out)


@st.composite
def strided(draw: Callable[..., Any]) -> tuple[torch.Tensor, bytes]:
    """A view of arbitrary bytes (so any NaN payload and signed zero), and its logical bytes."""
    dtype = draw(st.sampled_from(STRIDED_DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = draw(st.lists(st.integers(0, 5), min_size=len(shape), max_size=len(shape)))
    if draw(st.booleans()):
        strides = list(torch.empty(shape, device="meta").stride())
    offset = draw(st.integers(0, 3))
    last = offset + sum(max(n - 1, 0) * s for n, s in zip(shape, strides, strict=True))
    count = (last + 1) * dtype.itemsize
    raw = draw(st.binary(min_size=count, max_size=count))
    shift = draw(st.integers(0, 7))
    memory = torch.frombuffer(bytearray(bytes(shift) + raw), dtype=torch.uint8, offset=shift)
    t = memory.view(dtype).as_strided(shape, strides, offset)
    flip = False
    if dtype.is_complex and draw(st.booleans()):
        t, flip = t.conj(), True
    elif dtype in NEGATABLE and draw(st.booleans()):
        t, flip = torch._neg_view(t), True
    if dtype.is_floating_point and dtype in (*NEGATABLE, torch.bfloat16) and draw(st.booleans()):
        t = t.detach().requires_grad_()
    return t, logical_bytes(raw, dtype, shape, strides, offset, flip)


@settings(deadline=None, max_examples=400)
@given(case=strided())
def test_every_dtype_stride_offset_and_bit(case: tuple[torch.Tensor, bytes]) -> None:
    t, data = case
    version = t._version
    want = expected(data)
    address, nbytes, alive = dense_bytes(t)
    assert ctypes.string_at(address, nbytes) == data
    assert alive.grad_fn is None
    digest = fingerprint(t)
    assert (digest.mix64, digest.xor32) == want[:2]
    assert digest.small == (data if len(data) <= 64 else b"")
    stage = Stage(1 << 12)
    staged = stage.add(address, nbytes)
    stage.resolve()
    assert staged is not None
    assert (staged.mix64, staged.xor32, staged.small) == (*want[:2], digest.small)
    assert fallback.digest(alive) == want
    assert t._version == version


@pytest.mark.parametrize("shift", [0, 1, 8])
@pytest.mark.parametrize("dtype", STRIDED_DTYPES, ids=str)
def test_each_dtype_at_each_alignment(dtype: torch.dtype, shift: int) -> None:
    """Transposed, it is copied: torch's own copy of complex128 crashes at odd addresses."""
    raw = bytes((i * 37 + 11) % 256 for i in range(24 * dtype.itemsize))
    memory = torch.frombuffer(bytearray(bytes(shift) + raw), dtype=torch.uint8, offset=shift)
    t = memory.view(dtype).view(4, 6)
    assert fingerprint(t).mix64 == expected(raw).mix64
    turned = logical_bytes(raw, dtype, [6, 4], [1, 6], 0, flip=False)
    assert fingerprint(t.t()).mix64 == expected(turned).mix64
    assert components(t) == (("", t),)


@pytest.mark.parametrize("length", [1, 64])
def test_a_resolved_sign_keeps_every_nan(length: int) -> None:
    """torch's own negation makes a signalling half NaN quiet, but not in long tensors."""
    bits = torch.full((length,), 0x7C01, dtype=torch.int16)
    negative = torch._neg_view(bits.view(torch.float16))
    assert fingerprint(negative).mix64 == expected(b"\x01\xfc" * length).mix64


def test_reading_moves_no_state_and_calls_nothing_it_need_not() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[str] = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    t = torch.randn(8, 8, requires_grad=True)
    state, version = torch.get_rng_state(), t._version
    with Log():
        assert components(t) == (("", t),)
        assert not is_freed(t)
        assert dense_bytes(t)[2] is t
        fingerprint(t)
        assert calls == []
        _address, _nbytes, alive = dense_bytes(t.t())
    assert not alive.requires_grad
    assert {name.split(".")[0] for name in calls} == {"aten"}
    assert torch.equal(torch.get_rng_state(), state)
    assert t._version == version
    assert t.grad_fn is None


def test_inference_tensors_outside_inference_mode() -> None:
    with torch.inference_mode():
        t = torch.arange(12.0).view(3, 4)
    plain = torch.arange(12.0).view(3, 4)
    assert fingerprint(t).mix64 == fingerprint(plain).mix64
    assert fingerprint(t.t()).mix64 == fingerprint(plain.t().contiguous()).mix64


def test_payloads_signs_and_rows_are_told_apart() -> None:
    rows = torch.randn(6, 4)
    quiet = torch.tensor([0x7FC00000, 0x7FC00001, 0x7F800001], dtype=torch.int32)
    variants = [
        rows,
        rows[[1, 0, 2, 3, 4, 5]],
        rows[[0, 0, 1, 1, 2, 2]],
        rows.flip(0),
        -rows,
        torch.zeros(6, 4),
        -torch.zeros(6, 4),
        torch.full((6, 4), float("nan")),
        *(word.view(torch.float32).expand(6, 4) for word in quiet[1:]),
    ]
    assert len({fingerprint(t).mix64 for t in variants}) == len(variants)
    nan = torch.full((6, 4), float("nan"))
    assert fingerprint(quiet[:1].view(torch.float32).expand(6, 4)).mix64 == fingerprint(nan).mix64


def test_regions_of_large_tensors_only() -> None:
    data = bytes(i % 253 for i in range(65_536))
    t = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    assert fingerprint(t).regions == expected(data).regions
    assert fingerprint(t[1:]).regions is None


FREED = {
    "whole": lambda t: t,
    "offset": lambda t: t[2:],
    "transposed": lambda t: t.view(4, 4).t(),
    "expanded": lambda t: t[3].expand(1000, 1000),
}


@pytest.mark.parametrize("kept", [0, 8])
@pytest.mark.parametrize("view", FREED.values(), ids=FREED.keys())
def test_freed_memory_is_never_read(
    view: Callable[[torch.Tensor], torch.Tensor], kept: int
) -> None:
    base = torch.arange(16.0)
    t = view(base)
    assert not is_freed(t)
    base.untyped_storage().resize_(kept)
    assert is_freed(t)
    with pytest.raises(CaptureError, match="freed"):
        fingerprint(t)


def test_an_empty_view_of_freed_memory_is_empty() -> None:
    base = torch.arange(16.0)
    empty = base[:0]
    base.untyped_storage().resize_(0)
    assert not is_freed(empty)
    assert fingerprint(empty).mix64 == 0


def test_a_view_inside_a_shrunk_storage_is_not_freed() -> None:
    base = torch.arange(16.0)
    head, want = base[:2], fingerprint(torch.tensor([0.0, 1.0])).mix64
    base.untyped_storage().resize_(8)
    assert not is_freed(head)
    assert fingerprint(head).mix64 == want


def quietly(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """torch warns when such tensors are made; reading them must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def parts_of(t: torch.Tensor) -> dict[str, torch.Tensor]:
    found = components(t)
    assert not isinstance(found, Reason)
    for _name, part in found:
        assert part.layout is torch.strided
        assert part.grad_fn is None
        fingerprint(part)
    return dict(found)


def test_sparse_coo_as_it_lies() -> None:
    """Not coalesced first: that would hide a difference, and change the tensor."""
    indices, values = torch.tensor([[1, 0, 1]]), torch.tensor([1.0, 2.0, 3.0])
    t = quietly(lambda: torch.sparse_coo_tensor(indices, values, (4,), requires_grad=True))
    parts = parts_of(t)
    assert list(parts) == [".indices", ".values"]
    assert parts[".indices"].tolist() == [[1, 0, 1]]
    assert parts[".values"].tolist() == [1.0, 2.0, 3.0]
    assert not t.is_coalesced()


@pytest.mark.parametrize(
    ("layout", "compressed", "plain"),
    [
        (torch.sparse_csr, ".crow_indices", ".col_indices"),
        (torch.sparse_csc, ".ccol_indices", ".row_indices"),
        (torch.sparse_bsr, ".crow_indices", ".col_indices"),
        (torch.sparse_bsc, ".ccol_indices", ".row_indices"),
    ],
)
def test_sparse_compressed(layout: torch.layout, compressed: str, plain: str) -> None:
    block = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    dense = torch.eye(4) * 3
    t = quietly(lambda: dense.to_sparse(layout=layout, blocksize=block).requires_grad_())
    parts = parts_of(t)
    assert list(parts) == [compressed, plain, ".values"]
    step = 1 if block is None else 2
    assert parts[compressed].tolist() == list(range(4 // step + 1))
    assert parts[plain].tolist() == list(range(4 // step))
    assert parts[".values"].sum() == 12


def test_nested_transposed_equals_its_copy() -> None:
    pieces = [torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)]
    t = quietly(lambda: torch.nested.nested_tensor(pieces, requires_grad=True))
    turned = t.transpose(1, 2)
    copy = quietly(lambda: torch.nested.nested_tensor([p.t().contiguous() for p in pieces]))
    parts, other = parts_of(turned), parts_of(copy)
    assert list(parts) == [".values", ".sizes"]
    assert parts[".sizes"].tolist() == [[3, 2], [3, 4]]
    assert parts[".values"].tolist() == [x for p in pieces for x in p.t().reshape(-1).tolist()]
    for name in parts:
        assert fingerprint(parts[name]).mix64 == fingerprint(other[name]).mix64
    assert parts_of(quietly(lambda: torch.nested.nested_tensor([])))[".values"].numel() == 0


def test_nested_jagged() -> None:
    pieces = [torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)]
    t = quietly(lambda: torch.nested.nested_tensor(pieces, layout=torch.jagged))
    parts = parts_of(t)
    assert list(parts) == [".values", ".offsets"]
    assert parts[".offsets"].tolist() == [0, 2, 6]
    assert parts[".values"].shape == (6, 3)


def test_quantized_per_tensor_and_transposed() -> None:
    t = quietly(
        lambda: torch.quantize_per_tensor(torch.arange(6.0).view(2, 3), 0.5, 3, torch.qint8)
    )
    parts = parts_of(t)
    assert list(parts) == [".int_repr", ".scale", ".zero_point"]
    assert parts[".int_repr"].tolist() == [[3, 5, 7], [9, 11, 13]]
    assert (parts[".scale"].item(), parts[".zero_point"].item()) == (0.5, 3)
    turned = expected(bytes([3, 9, 5, 11, 7, 13])).mix64
    assert fingerprint(parts_of(t.t())[".int_repr"]).mix64 == turned
    assert fingerprint(t.t()).mix64 == turned
    assert fingerprint(t).mix64 == expected(bytes([3, 5, 7, 9, 11, 13])).mix64


@pytest.mark.parametrize("dtype", [torch.quint8, torch.qint32, torch.quint4x2])
def test_quantized_per_channel(dtype: torch.dtype) -> None:
    # Packed dtypes have floating zero points, and only they may: others crash in torch.
    zeros = torch.tensor([1, 2], dtype=torch.float32 if dtype is torch.quint4x2 else torch.int64)
    scales = torch.tensor([0.5, 0.25])
    t = quietly(
        lambda: torch.quantize_per_channel(torch.ones(2, 4), scales, zeros, axis=0, dtype=dtype)
    )
    parts = parts_of(t)
    assert parts[".scale"].tolist() == [0.5, 0.25]
    assert parts[".zero_point"].tolist() == [1, 2]
    want = [0x33] * 2 + [0x66] * 2 if dtype is torch.quint4x2 else [3] * 4 + [6] * 4
    assert parts[".int_repr"].flatten().tolist() == want


def test_freed_quantized_memory_is_never_read() -> None:
    t = quietly(lambda: torch.quantize_per_tensor(torch.ones(4), 0.5, 3, torch.qint8))
    t.untyped_storage().resize_(0)
    assert components(t) is Reason.FREED


def test_what_has_no_bytes_says_so() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert components(torch.empty(3, device="meta")) is Reason.UNSUPPORTED
    assert components(torch.empty(3, device="meta", layout=torch.sparse_coo)) is Reason.UNSUPPORTED
    with FakeTensorMode():
        fake = torch.ones(3)
    assert components(fake) is Reason.UNSUPPORTED
    if torch.backends.mkldnn.is_available():
        assert components(torch.ones(2, 2).to_mkldnn()) is Reason.UNSUPPORTED
    seen: list[object] = []

    def look(t: torch.Tensor) -> torch.Tensor:
        seen.append(components(t))
        return t.sum()

    torch.func.vmap(look)(torch.ones(3, 2))
    torch.func.grad(look)(torch.ones(3))
    assert seen == [Reason.UNSUPPORTED, Reason.UNSUPPORTED]


def test_a_subclass_hears_nothing_of_the_reading() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            heard.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    heard: list[object] = []
    t = torch.arange(6.0).view(2, 3).t().as_subclass(Loud)
    heard.clear()
    parts = components(t)
    assert not isinstance(parts, Reason)
    assert fingerprint(parts[0][1]).mix64 == fingerprint(torch.arange(6.0).view(2, 3).t()).mix64
    assert heard == []


def test_a_wrapper_subclass_gives_its_inner_tensors() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    left, right = torch.arange(3.0), torch.ones(3)
    parts = parts_of(TwoTensor(left, right))
    assert {name: part.tolist() for name, part in parts.items()} == {
        ".a": [0.0, 1.0, 2.0],
        ".b": [1.0, 1.0, 1.0],
    }


def test_dtype_codes_are_positions_in_the_stored_table() -> None:
    assert [DTYPES[dtype_code(d)] for d in ALL_DTYPES] == [str(d)[6:] for d in ALL_DTYPES]
    assert dtype_code(torch.bfloat16) == DTYPES.index("bfloat16")
    known = {d for d in vars(torch).values() if isinstance(d, torch.dtype)}
    assert known <= set(ALL_DTYPES)
