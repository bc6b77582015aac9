"""Canonical arguments: the C++ recorder writes the text that ``opguard.capture.arguments`` does."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_twins import by_native, by_python, paired
from torch.utils import _pytree as pytree

from native_support import OLDEST, RELEASE, needs_native

pytestmark = needs_native

# Every kind of argument that a schema can have, each in an operator of its own.
KINDS = (
    "float", "float[]", "float?[]", "complex", "int", "int[]", "int?[]", "int[][]", "SymInt",
    "SymInt[]", "bool", "bool[]", "str", "str[]", "str?", "str[][]", "Scalar", "Scalar?",
    "Scalar[]", "Device", "Device?", "Device[]", "ScalarType", "ScalarType?", "ScalarType[]",
    "ScalarType?[]", "Layout?", "Layout[]", "MemoryFormat", "MemoryFormat?", "MemoryFormat[]",
    "Generator?", "Dict(str, int)", "Dict(str, Tensor)", "(int, str)", "Any", "Tensor?",
    "Tensor[]", "Tensor?[]", "Tensor[][]", "Tensor", "Stream?",
)  # fmt: skip
DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)


@pytest.fixture(scope="module")
def echo() -> Iterator[Callable[[str, Any], None]]:
    """Calls the operator whose argument is of that kind."""
    library = torch.library.Library("opguard_arguments", "DEF")
    for number, kind in enumerate(KINDS):
        library.define(f"echo_{number}(Tensor x, {kind} value) -> Tensor")
        library.impl(f"echo_{number}", lambda x, _: x.clone(), "CPU")
    tensor = torch.zeros(1)

    def call(kind: str, value: Any) -> None:
        getattr(torch.ops.opguard_arguments, f"echo_{KINDS.index(kind)}")(tensor, value)

    yield call
    library._destroy()


VALUES: list[tuple[str, Any]] = [
    ("float", 1.0), ("float", 3), ("float", -0.0), ("float", math.inf), ("float", -math.inf),
    ("float", math.nan), ("float[]", []), ("float?[]", [0.1, None]), ("complex", 1j),
    ("complex", complex(-0.0, math.nan)), ("int", 2**63 - 1), ("int", -(2**63)), ("int", True),
    ("int[]", []), ("int[]", [1, 2]), ("int?[]", [1, None]), ("int[][]", [[], [1], [2, 3]]),
    ("SymInt", 7), ("SymInt[]", [0, -1]), ("bool", True), ("bool[]", [True, False]), ("str", ""),
    ("str", 'a"b\\ä😀\n\x00'), ("str[]", ["a,b", "c"]), ("str?", None), ("str[][]", [["a"], []]),
    ("Scalar", 1), ("Scalar", 1.0), ("Scalar", True), ("Scalar", 2**64 - 1), ("Scalar", 1 - 2j),
    ("Scalar?", None), ("Scalar[]", [1, 2.0, True, 1j]), ("Device", "cpu"), ("Device?", None),
    ("Device", "cuda:1"), ("Device", "meta"), ("Device?", "cpu:0"), ("Device[]", ["cpu", "cuda:0"]),
    *(("ScalarType", dtype) for dtype in DTYPES), ("ScalarType?", None),
    ("ScalarType?", torch.bfloat16), ("ScalarType[]", [torch.float32, torch.int8]),
    ("ScalarType?[]", [torch.float32, None]), ("Layout?", None),
    *(("Layout?", value) for value in (
        torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr,
        torch.sparse_bsc, torch._mkldnn, torch.jagged,
    )),
    ("Layout[]", [torch.strided]),
    *(("MemoryFormat", value) for value in (
        torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d,
    )),
    ("MemoryFormat?", None), ("MemoryFormat[]", [torch.channels_last]), ("Generator?", None),
    ("Generator?", torch.Generator()), ("Dict(str, int)", {"a": 1}), ("(int, str)", (1, "a")),
    ("Dict(str, Tensor)", {"a": torch.zeros(1)}), ("Any", 1), ("Any", "a"), ("Any", [1, 2]),
    ("Any", (1, 2.5)), ("Any", {"a": [1]}), ("Any", None), ("Any", torch.zeros(1)),
    ("Any", [torch.zeros(1)]), ("Tensor?", None), ("Tensor?", torch.zeros(1)), ("Tensor[]", []),
    ("Tensor[]", [torch.zeros(1)]), ("Tensor?[]", [None, torch.zeros(1)]),
    ("Tensor[][]", [[torch.zeros(1)], []]), ("Tensor", torch.zeros(1)), ("Stream?", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value"), VALUES, ids=lambda value: str(value).partition(" at 0x")[0][:40]
)
def test_every_kind_of_argument(echo: Callable[[str, Any], None], kind: str, value: Any) -> None:
    if RELEASE < (2, 13) and kind in ("ScalarType[]", "Layout[]", "MemoryFormat[]"):
        pytest.skip("torch 2.4 and 2.11 give a mode their numbers")
    if OLDEST and value == 2**64 - 1:
        pytest.skip("torch 2.4 has no such Scalar")
    found = by_native(lambda: echo(kind, value))
    assert len(found) == 1
    assert found == by_python(lambda: echo(kind, value))


def test_every_kind_has_a_value() -> None:
    assert {kind for kind, _ in VALUES} == set(KINDS)


def from_bits(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


@given(st.lists(st.integers(0, 2**64 - 1).map(from_bits) | st.floats(), min_size=1, max_size=50))
@settings(deadline=None)
def test_floats_by_their_bits(echo: Callable[[str, Any], None], values: list[float]) -> None:
    assert by_native(lambda: echo("float[]", values)) == by_python(lambda: echo("float[]", values))


def test_floats_around_every_power_of_two_and_ten(echo: Callable[[str, Any], None]) -> None:
    powers = [math.ldexp(1.0, e) for e in range(-1074, 1024)]
    powers += [float(f"1e{e}") for e in range(-320, 309)]
    values = [
        neighbour
        for power in powers
        for neighbour in (math.nextafter(power, 0), power, math.nextafter(power, math.inf))
    ]
    [(_, text)] = by_native(lambda: echo("float[]", values))
    assert text == f"value=[{','.join(map(repr, values))}]"


@given(st.text(), st.integers(-(2**63), 2**63 - 1), st.complex_numbers())
@settings(deadline=None)
def test_texts_and_numbers(
    echo: Callable[[str, Any], None], text: str, whole: int, number: complex
) -> None:
    def call() -> None:
        echo("str", text)
        echo("Scalar", whole)
        echo("Scalar", number)

    found = by_native(call)
    assert found == by_python(call)
    assert found[0][1] == f"value={json.dumps(text)}"


def test_values_that_compare_equal_are_told_apart(echo: Callable[[str, Any], None]) -> None:
    values = [1, 1.0, True, 0, 0.0, -0.0, False, 1 + 0j, from_bits(0x7FF8000000000001), math.nan]

    def call() -> None:
        for value in (*values, *reversed(values)):  # the second time from the cache
            echo("Scalar", value)

    texts = [text for _, text in by_native(call)]
    assert texts == [text for _, text in by_python(call)]
    assert len(set(texts)) == len(values)


def test_numbers_given_for_tensors_are_arguments() -> None:
    x = torch.ones(2)

    def call() -> None:
        _ = x + 2, x * 2.5, x + True, x - 1j, 3 - x, x / 7, x**2, x == 1
        x.add_(2, alpha=3)

    found = by_native(call)
    assert found == by_python(call)
    assert found[0] == ("aten.add.Tensor", "other=2, alpha=1")
    assert found[1] == ("aten.mul.Tensor", "other=2.5")


def step() -> None:
    """A training step with most things in it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding="same"), torch.nn.BatchNorm2d(4), torch.nn.GELU("tanh"),
        torch.nn.Flatten(), torch.nn.Dropout(0.25), torch.nn.Linear(64, 2),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=True)
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(
            model(torch.rand(2, 3, 4, 4)), torch.tensor([0, 1])
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_training_step() -> None:
    pairs = paired(by_python(step), by_native(step))
    assert len(pairs) > 80
    assert [pair for pair in pairs if pair[1] != pair[2]] == []


CHOSEN_BY_TORCH = re.compile(r"\b(compute_uv|compute_v)=(True|False)")
"""Under a mode linalg always computes the vectors, without one only where a gradient needs them."""


def test_a_sample_of_every_operator() -> None:
    pytest.importorskip("expecttest", reason="torch.testing._internal imports it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

        pairs = [pair for info in op_db for pair in sample_pairs(info)]
    different = [
        (name, a, b)
        for name, a, b in pairs
        if CHOSEN_BY_TORCH.sub("", a) != CHOSEN_BY_TORCH.sub("", b)
    ]
    assert different == []
    assert len(pairs) > 3000  # (torch 2.13: 5,595 calls of 545 operators)
    assert len({name for name, _, _ in pairs}) > 400


def sample_pairs(info: Any) -> list[tuple[str, str, str]]:
    if torch.float32 not in info.supported_dtypes("cpu") or info.name.startswith("jiterator"):
        return []  # (jiterator wants a GPU)
    grad = info.supports_autograd and torch.float32 in info.supported_backward_dtypes("cpu")

    def call() -> None:
        torch.manual_seed(0)
        result = info.op(sample.input, *sample.args, **sample.kwargs)
        ends = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        ends = [end for end in ends if end.requires_grad and end.layout is torch.strided]
        with contextlib.suppress(RuntimeError):  # some gradients are ill-defined: eig of ones
            if ends:
                torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])

    sides = []
    for capture in (by_python, by_native):
        random.seed(0)  # some samples draw numbers
        torch.manual_seed(0)
        sample = next(iter(info.sample_inputs("cpu", torch.float32, requires_grad=grad)), None)
        if sample is None:
            return []
        sides.append(capture(call))
    return paired(*sides)


# Objects


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    if not dist.is_available():
        pytest.skip("torch without distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG", "PREMUL_SUM")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_are_named_and_groups_shown(group: None, name: str) -> None:
    reduction = getattr(dist.ReduceOp, name)
    if name == "PREMUL_SUM":
        reduction = dist._make_nccl_premul_sum(2.0)
    x = torch.ones(2, dtype=torch.int32)

    def call() -> None:
        try:
            dist.all_reduce(x, op=reduction)
        except RuntimeError:  # not every backend has all of them; the call was made
            assert name in ("AVG", "PREMUL_SUM")

    (operator, text), *others = by_native(call)
    assert not others or OLDEST  # whose Python code prints the arguments of a call that failed
    assert operator == "c10d.allreduce_.default"
    assert text.startswith(f"reduce_op={'<ReduceOp>' if OLDEST else name}, ")
    assert text.endswith("\tprocess_group=<ProcessGroup>")
    assert by_python(call) == [(operator, text)]


def test_every_reduction_has_a_name() -> None:
    members = dist.ReduceOp.RedOpType.__members__ if dist.is_available() else REDUCTIONS
    assert set(members) - {"UNUSED"} == set(REDUCTIONS)


def test_other_collectives(group: None) -> None:
    x = torch.ones(2)

    def call() -> None:
        dist.broadcast(x, src=0)
        dist.all_gather([torch.empty(2)], x)
        dist.scatter(torch.empty(2), [x], src=0)
        dist.barrier()

    found = by_native(call)
    assert found == by_python(call)
    assert len([name for name, _ in found if name.startswith("c10d.")]) == 4


def test_packed_parameters() -> None:
    def call() -> None:
        packed = torch.ops.quantized.linear_prepack(weight, None)
        torch.ops.quantized.linear_dynamic(torch.ones(1, 2), packed)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight = torch.quantize_per_tensor(torch.ones(2, 2), 0.5, 0, torch.qint8)
        found = by_native(call)
        assert found == by_python(call)
    assert any("=<LinearPackedParamsBase>" in text for _, text in found)
