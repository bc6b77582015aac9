"""The C++ fingerprints of host memory: every vector code against the numpy reference and the Python
reading of tensors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest
import torch
from fingerprint_reference import expected
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fingerprint_spec import VECTORS, as_array, random_bytes
from test_fingerprint_tensor import STRIDED_DTYPES, quietly, strided

from native_support import needs_native
from opguard.errors import NativeError
from opguard.fingerprint import native, spec
from opguard.fingerprint.tensor import fingerprint

pytestmark = needs_native

CODES = native.module().vector_codes() if native.available() else ["generic"]
every_code = pytest.mark.parametrize("code", CODES)


@contextmanager
def using(code: str) -> Iterator[ModuleType]:
    """The module with this vector code; the one that was in use comes back."""
    module = native.module()
    before = module.vector_code()
    module.use_vector_code(code)
    try:
        yield module
    finally:
        module.use_vector_code(before)


def check(module: ModuleType, t: torch.Tensor) -> None:
    """The same answer as the Python module's."""
    want = fingerprint(t)
    assert module.fingerprint_tensor(t) == (want.mix64, want.xor32, None)
    mix64, xor32, regions = module.fingerprint_tensor(t, regions=True)
    assert (mix64, xor32) == (want.mix64, want.xor32)
    assert sum(regions) & spec.MASK64 == mix64
    if want.regions is not None:
        assert regions == want.regions


def random_tensor(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Arbitrary bytes: any NaN payload, any padding bits."""
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.frombuffer(bytearray(random_bytes(count, seed)), dtype=dtype).view(shape)


def test_constants_are_those_of_the_reference() -> None:
    module = native.module()
    for name in ("K", "M", "REGIONS", "REGION_BYTES", "SMALL_BYTES"):
        assert getattr(module, name) == getattr(spec, name), name


def test_the_portable_code_is_always_there() -> None:
    assert CODES[-1] == "generic"
    assert set(CODES) <= {"avx512", "avx2", "generic"}


def test_the_best_code_is_used_at_first() -> None:
    program = "from opguard.fingerprint.native import module; print(module().vector_code())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == CODES[:1], done.stderr


def test_a_code_that_the_processor_lacks_is_refused() -> None:
    with using("generic") as module:
        with pytest.raises(ValueError, match="mmx"):
            module.use_vector_code("mmx")
        assert module.vector_code() == "generic"


@every_code
@pytest.mark.parametrize(("data", "count", "xor32", "mix64"), VECTORS)
def test_published_vectors(code: str, data: bytes, count: int, xor32: str, mix64: str) -> None:
    with using(code) as module:
        assert len(data) == count
        assert module.fingerprint_bytes(data) == (int(mix64, 16), int(xor32, 16), None)


@every_code
@settings(deadline=None, max_examples=200)
@given(
    data=st.binary(max_size=3000), offset=st.integers(0, 7), parts=st.sampled_from([1, 2, 3, 16])
)
def test_equals_the_numpy_reference(code: str, data: bytes, offset: int, parts: int) -> None:
    array = as_array(data, offset)
    want = spec.digest_with_regions(array)
    with using(code) as module:
        assert module.fingerprint_bytes(array) == (*want[:2], None)
        assert module.fingerprint_bytes(array, regions=True, parts=parts) == want


@every_code
def test_every_short_length(code: str) -> None:
    data = random_bytes(700, seed=4)
    with using(code) as module:
        for length in range(len(data)):
            assert module.fingerprint_bytes(data[:length], regions=True) == expected(data[:length])


@every_code
@pytest.mark.parametrize("length", [65_535, 65_536, 262_145, 1_600_001])
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_large_buffers_whole_and_in_parts(code: str, length: int, parts: int) -> None:
    array = as_array(random_bytes(length, seed=length), offset=length % 5)
    with using(code) as module:
        want = spec.digest_with_regions(array)
        assert module.fingerprint_bytes(array, regions=True, parts=parts) == want


def test_a_buffer_with_gaps_is_refused() -> None:
    with pytest.raises(BufferError):
        native.module().fingerprint_bytes(memoryview(bytes(10))[::2])


@every_code
@settings(deadline=None, max_examples=300)
@given(case=strided())
def test_every_dtype_stride_offset_and_bit(code: str, case: tuple[torch.Tensor, bytes]) -> None:
    t, data = case
    version = t._version
    with using(code) as module:
        assert module.fingerprint_tensor(t, regions=True) == expected(data)
        check(module, t)
    assert t._version == version


VIEWS = {
    "transposed": lambda t: t.t(),
    "ragged tiles": lambda t: t[:130, :77].t(),
    "odd rows": lambda t: t[:101, :99].t(),
    "permuted": lambda t: t.view(8, 25, 7, 32).permute(2, 1, 3, 0),
    "channels last": lambda t: t.view(8, 25, 14, 16).permute(0, 3, 1, 2),
    "few columns": lambda t: t[:, :3],
    "few strided columns": lambda t: t[:, 5::80],
    "pairs": lambda t: t.view(-1, 4)[:, 1:3],
    "one column": lambda t: t[:, 3],
    "every third": lambda t: t[:, 1::3],
    "slices": lambda t: t[:, 3:200],
    "expanded row": lambda t: t[0].expand(150, 224),
    "expanded column": lambda t: t[:, :1].expand(200, 300),
    "expanded number": lambda t: t[0, 0].expand(70, 1000),
    "overlapping": lambda t: t.as_strided((150, 200), (3, 1), 5),
    "overlapping transposed": lambda t: t.as_strided((150, 200), (1, 2), 7),
}


@every_code
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_of_every_element_size(code: str, view: object) -> None:
    """Sizes that take the ways of tiles, rows and runs, and have regions in wider dtypes."""
    dtypes = (torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.complex128)
    with using(code) as module:
        for dtype in dtypes:
            check(module, view(random_tensor(dtype, 200, 224)))


@every_code
@pytest.mark.parametrize("dtype", STRIDED_DTYPES, ids=str)
def test_each_dtype_dense_and_transposed(code: str, dtype: torch.dtype) -> None:
    t = random_tensor(dtype, 36, 52)
    with using(code) as module:
        check(module, t)
        check(module, t.t())
        check(module, t[1, 2])
        check(module, t[:0])
        check(module, t[::2, ::3].t())


@every_code
@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_conj_and_neg_bits_of_complex_numbers(code: str, dtype: torch.dtype) -> None:
    t = random_tensor(dtype, 40, 300)
    with using(code) as module:
        for view in (t, t.t(), t[:, ::3], t[::2], t[0, :3], t[3, 1]):
            conjugate, negative = view.conj(), torch._neg_view(view)
            both = torch._neg_view(conjugate)
            prints = [module.fingerprint_tensor(v)[0] for v in (view, conjugate, negative, both)]
            assert len(set(prints)) == 4
            for bits in (conjugate, negative, both, conjugate.imag, conjugate.real):
                check(module, bits)


@every_code
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.bool]
)
def test_neg_bit_of_real_numbers(code: str, dtype: torch.dtype) -> None:
    """Only a program that calls ``_neg_view`` itself sets it on integers."""
    t = random_tensor(dtype, 35, 301)
    with using(code) as module:
        for view in (t, t.t(), t[:, ::2], t[0, :3], t[0, 0]):
            negative = torch._neg_view(view)
            assert negative.is_neg()
            check(module, negative)


def test_dimensions_of_one_element_have_any_stride() -> None:
    t = torch.arange(6.0).as_strided((1, 3, 1, 2), (2**61, 2, 2**62, 1))
    check(native.module(), t)
    check(native.module(), t.as_strided((1, 2, 3), (2**62, 1, 2)))
    check(native.module(), torch.arange(4.0).view([1] * 66 + [2, 2]).transpose(66, 67))


def test_tensors_with_history_and_of_inference_mode() -> None:
    t = torch.randn(30, 40, requires_grad=True)
    check(native.module(), t)
    check(native.module(), t.t())
    assert t.grad_fn is None
    with torch.inference_mode():
        inferred = torch.randn(30, 40)
    check(native.module(), inferred.t())


@pytest.mark.parametrize("turned", [False, True])
def test_a_lazy_clone_stays_lazy(turned: bool) -> None:
    t = torch._lazy_clone(torch.randn(300, 400))
    assert torch._C._is_cow_tensor(t)
    native.module().fingerprint_tensor(t.t() if turned else t)
    assert torch._C._is_cow_tensor(t)
    check(native.module(), t)


@pytest.mark.parametrize("kept", [0, 8])
def test_freed_memory_is_never_read(kept: int) -> None:
    t = torch.arange(16.0)
    views = [t, t[2:], t.view(4, 4).t(), t[3].expand(1000, 1000)]
    t.untyped_storage().resize_(kept)
    for view in views:
        with pytest.raises(NativeError, match="freed"):
            native.module().fingerprint_tensor(view)
    check(native.module(), t[:0])


def test_what_has_no_bytes_of_its_own_is_refused() -> None:
    quantized = quietly(lambda: torch.quantize_per_tensor(torch.ones(4), 0.5, 3, torch.quint8))
    nested = quietly(lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    for t in (torch.empty(3, device="meta"), torch.eye(3).to_sparse(), quantized, nested):
        with pytest.raises(NativeError, match="strided CPU tensors"):
            native.module().fingerprint_tensor(t)


def test_threads_do_not_change_the_answer() -> None:
    """In a process of its own: a program that forks cannot use torch's threads afterwards."""
    program = """
import torch
from opguard.fingerprint.native import module
data = torch.arange(1_000_003, dtype=torch.int32).view(torch.uint8)
found = set()
for threads in (1, 2, 3, 4, 1):
    torch.set_num_threads(threads)
    for part in (data, data[1:], data[:-5]):
        found.add((part.numel(), part.data_ptr(), module().fingerprint_tensor(part, regions=True)))
assert len(found) == 3, found
from opguard.fingerprint.tensor import fingerprint
assert {mix for _, _, (mix, _, _) in found} == {
    fingerprint(part).mix64 for part in (data, data[1:], data[:-5])
}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
