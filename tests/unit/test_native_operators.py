"""What operators do: the C++ recorder has the same facts as ``opguard.capture.operators``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from operator_twins import TABLES, by_native

from native_support import OLDEST, needs_native
from opguard.capture import torch_private
from opguard.capture.arguments import canonical
from opguard.capture.operators import Operator, describe
from opguard.errors import NativeError
from opguard.fingerprint import native

pytestmark = needs_native


def overload(full_name: str) -> Any:
    name, _, overload_name = full_name.partition(".")
    namespace, base = name.split("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload_name or "default")


def described(full_name: str) -> dict[str, Any]:
    name, _, overload_name = full_name.partition(".")
    result: dict[str, Any] = native.module().describe(name, overload_name, TABLES)
    return result


def draws(func: Any) -> bool:
    """As the dispatcher has it: torch tags ``prims`` and ``rngprims`` in Python alone."""
    schema = func._schema
    tags = torch._C._get_operation_overload(schema.name, schema.overload_name)[2]
    return torch.Tag.nondeterministic_seeded in tags


def default_arguments(operator: Operator, func: Any) -> str:
    """Of a call with defaults alone. The schema shows memory formats as numbers; given, they are
    passed as what they are."""
    formats = (torch.contiguous_format, torch.preserve_format)
    given = [
        (argument.name, formats[argument.default_value])
        for argument in func._schema.arguments
        if "MemoryFormat" in str(argument.real_type) and argument.default_value is not None
    ]
    return canonical(operator, given)


def has_own_kernel(name: str, key: str) -> bool:
    return torch_private.dispatch_has_kernel(
        name, key
    ) and not torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(name, key)


def facts(full_name: str) -> dict[str, Any]:
    func = overload(full_name)
    operator = describe(func, -1)
    place = operator.by_name.get
    return {
        "name": operator.name,
        "schema_name": operator.schema_name,
        "kind": operator.kind.value,
        "parameters": [
            {
                "name": parameter.name,
                "holds_tensors": parameter.holds_tensors,
                "read": parameter.read,
                "written": parameter.written,
                "declared": parameter.declared,
                "input_slot": parameter.name,
                "output_slot": f"{parameter.name}!",
            }
            for parameter in operator.parameters
        ],
        "random": draws(func),
        "void": operator.void,
        "partial": operator.partial,
        "copies": operator.copies,
        "declares_writes": operator.declares_writes,
        "collective": operator.collective,
        "unset_outputs": list(operator.unset_outputs),
        "written_returns": list(operator.written_returns),
        "returned_writes": list(operator.returned_writes),
        "switch_argument": -1 if operator.switch is None else place(operator.switch, -1),
        "from_root": operator.from_root,
        "may_view": operator.may_view,
        "generator_argument": place("generator", -1),
        "device_argument": place("device", -1),
        "group_argument": place("process_group", -1),
        "root_argument": place("root_rank", -1),
        "sets_storage": operator.schema_name == "aten::set_",
        "waits": operator.schema_name == "_c10d_functional::wait_tensor",
        "autocast_cpu": has_own_kernel(full_name, "AutocastCPU"),
        "autocast_cuda": has_own_kernel(full_name, "AutocastCUDA"),
        "operator": operator.name,
        "defaults": default_arguments(operator, func),
    }


def test_every_operator_has_the_same_facts() -> None:
    names = torch._C._dispatch_get_all_op_names()
    different = {}
    for name in names:
        found, expected = described(name), facts(name)
        assert set(found) == set(expected)
        wrong = {k: (found[k], expected[k]) for k in expected if found[k] != expected[k]}
        if wrong:
            different[name] = wrong
    assert different == {}
    assert len(names) > 3000  # (torch 2.13 has 3,598)


def test_python_alone_tags_nothing_but_prims() -> None:
    untagged = {
        name.split("::")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if draws(overload(name)) != describe(overload(name), -1).random
    }
    assert untagged <= {"prims", "rngprims"}


def test_an_operator_that_is_none_is_an_error() -> None:
    with pytest.raises(NativeError, match="no operator with a schema: aten::no_such"):
        native.module().describe("aten::no_such", "", TABLES)


@pytest.mark.parametrize(
    ("table", "name", "fact"),
    [
        ("overwrites", "aten::copy_", "parameters"),
        ("copies", "aten::clone", "copies"),
        ("partial_writers", "aten::index_put_", "partial"),
        ("not_events", "aten::is_pinned", "kind"),
        ("undeclared_writes", "aten::native_batch_norm", "switch_argument"),
        ("c10d_writes", "c10d::broadcast_", "from_root"),
        ("c10d_no_inputs", "c10d::barrier", "parameters"),
        ("unset_outputs", "aten::_ctc_loss", "unset_outputs"),
        ("written_returns", "fsdp::all_gather_copy_in", "written_returns"),
    ],
)
def test_each_table_decides_something(table: str, name: str, fact: str) -> None:
    if name.startswith("c10d") and not dist.is_available():
        pytest.skip("torch without distributed")
    if name.startswith("fsdp"):
        pytest.importorskip("torch.distributed.fsdp", exc_type=ImportError)
        if OLDEST:
            pytest.skip("of a later torch")
    emptied = {**TABLES, table: type(TABLES[table])()}
    assert native.module().describe(name, "", emptied)[fact] != described(name)[fact]


# Which operator a record-function call is of


def defined(schema: str, function: Callable[..., Any]) -> torch.library.Library:
    library = torch.library.Library("opguard_operators", "DEF")
    library.define(schema)
    library.impl(schema.partition("(")[0], function, "CPU")
    return library


def test_an_operator_defined_anew_is_described_anew() -> None:
    x = torch.zeros(1)

    def call() -> None:
        for _ in range(3):
            library = defined("anew(Tensor x) -> Tensor", lambda x: x.clone())
            torch.ops.opguard_operators.anew(x)
            library._destroy()
            library = defined(
                "anew(Tensor x, int size, str text) -> Tensor", lambda x, *_: x.clone()
            )
            torch.ops.opguard_operators.anew(x, 3, "a")
            library._destroy()

    name = "opguard_operators.anew.default"
    assert by_native(call) == [(name, ""), (name, 'size=3, text="a"')] * 3


def test_overloads_are_told_apart() -> None:
    x = torch.zeros(2)

    def call() -> None:
        for _ in range(2):
            torch.ops.aten.sum.default(x)
            torch.ops.aten.sum.dim_IntList(x, [0])
            torch.ops.aten.add.Scalar(x, 1)
            torch.ops.aten.add.Tensor(x, x)

    assert [name for name, _ in by_native(call)] == [
        "aten.sum.default", "aten.sum.dim_IntList", "aten.add.Scalar", "aten.add.Tensor",
    ] * 2  # fmt: skip


def test_names_that_are_no_operators_are_never_taken_for_one() -> None:
    x = torch.zeros(2, requires_grad=True)

    def call() -> None:
        for number in range(200):  # the buffers of these names come and go
            x.detach().exp()
            with torch.profiler.record_function("aten::exp"):
                pass
            with torch.profiler.record_function("x" * number):
                pass
        (x * 2).sum().backward()  # engine records hide nothing inside them

    names = [name for name, _ in by_native(call)]
    assert [name for name in names if name == "aten.exp.default"] == ["aten.exp.default"] * 200
    assert not [name for name in names if "profiler" in name or "autograd" in name]
    assert names[-5:] == [
        "aten.sum.default", "aten.ones_like.default", "aten.expand.default", "aten.mul.Tensor",
        "aten.detach.default",
    ]  # fmt: skip


def test_calls_within_an_event_are_none() -> None:
    names = [name for name, _ in by_native(lambda: torch.ones(2, 2).mean(dim=0))]
    assert names == ["aten.ones.default", "aten.mean.dim"]


def test_captures_on_many_threads_keep_to_themselves() -> None:
    found: list[Any] = [None] * 8
    start = threading.Barrier(len(found))

    def work(number: int) -> None:
        x = torch.zeros(number + 1)
        start.wait()
        for _ in range(50):
            found[number] = by_native(lambda: (x.add(number), x.mul(2.5), x.sum(dim=0)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, calls in enumerate(found):
        assert calls == [
            ("aten.add.Tensor", f"other={number}, alpha=1"),
            ("aten.mul.Tensor", "other=2.5"),
            ("aten.sum.dim_IntList", "dim=[0], keepdim=False, dtype=None"),
        ]


def test_what_the_program_raises_is_raised() -> None:
    with pytest.raises(IndexError):
        by_native(lambda: torch.zeros(2).sum(dim=5))
    with pytest.raises(KeyError, match="mine"):
        by_native(lambda: {}["mine"])
    assert by_native(lambda: torch.zeros(2).neg())[-1] == ("aten.neg.default", "")
