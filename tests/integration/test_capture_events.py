"""DESIGN section 3: what is an event, what it reads and what it writes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from torch import nn

from captured import capture
from opguard.fingerprint.tensor import fingerprint


def mix(tensor: torch.Tensor) -> str:
    return f"{fingerprint(tensor).mix64:016x}"


def test_linear_under_inference_mode_is_the_inner_calls(tmp_path: Path) -> None:
    layer, x = nn.Linear(3, 2), torch.ones(4, 3)

    def program() -> None:
        with torch.inference_mode():
            layer(x)

    assert capture(tmp_path, program).names == ["addmm"]


def test_pure_views_are_no_events_and_copies_are(tmp_path: Path) -> None:
    x = torch.arange(6.0).reshape(2, 3)

    def program() -> None:
        x.t().reshape(6)  # copies
        x.reshape(3, 2)  # does not
        x[0].view(3).unsqueeze(0).detach()
        x.to(torch.float32)
        x.to(torch.float64)

    assert capture(tmp_path, program).names == ["clone", "_to_copy"]


def test_outputs_and_inputs_carry_their_fingerprints(tmp_path: Path) -> None:
    x, y = torch.randn(5, 7), torch.randn(7, 3)
    event = capture(tmp_path, lambda: x @ y).one("mm")
    assert event.inputs["self"]["mix64"] == mix(x)
    assert event.inputs["mat2"]["mix64"] == mix(y)
    assert event.outputs["0"]["mix64"] == mix(x @ y)
    assert event.outputs["0"]["shape"] == [5, 3]


@pytest.mark.parametrize("mode", ["trusted", "full"])
def test_written_arguments_are_outputs(tmp_path: Path, mode: str) -> None:
    x, y, out = torch.ones(4), torch.full((4,), 2.0), torch.empty(0)

    def program() -> None:
        x.add_(y)
        x.copy_(y)
        torch.mul(x, y, out=out)

    captured = capture(tmp_path, program, mode=mode)
    add, copy, mul = (captured.one(name) for name in ("add_", "copy_", "mul"))
    assert list(add.inputs) == ["self", "other"]
    assert list(add.outputs) == ["self!"]
    assert add.outputs["self!"]["mix64"] == mix(torch.full((4,), 3.0))
    assert list(copy.inputs) == ["src"]  # wholly overwritten: no input
    assert copy.outputs["self!"]["producers"] == [[add.seq, "self!"]]
    assert list(mul.inputs) == ["self", "other"]
    assert mul.outputs["out!"]["mix64"] == mix(torch.full((4,), 4.0))


def test_lists_of_tensors_have_a_slot_each(tmp_path: Path) -> None:
    xs = [torch.ones(2), torch.ones(3)]

    def program() -> None:
        torch._foreach_add_(xs, 1.0)
        torch.cat(xs)
        torch.split(xs[1].clone() * 2, 1)[0].sin()

    captured = capture(tmp_path, program)
    added = captured.one("_foreach_add_")
    assert list(added.inputs) == ["self[0]", "self[1]"]
    assert list(added.outputs) == ["self[0]!", "self[1]!"]
    assert added.outputs["self[1]!"]["mix64"] == mix(torch.full((3,), 2.0))
    assert captured.one("cat").inputs["tensors[0]"]["producers"] == [[added.seq, "self[0]!"]]
    assert captured.names == ["_foreach_add_", "cat", "clone", "mul", "sin"]


def test_a_tensor_twice_in_a_list(tmp_path: Path) -> None:
    x = torch.ones(2)
    event = capture(tmp_path, lambda: torch._foreach_add_([x, x], 1.0)).one("_foreach_add_")
    assert event.outputs["self[1]!"]["mix64"] == mix(torch.full((2,), 3.0))


def test_returned_numbers_are_outputs_by_their_bits(tmp_path: Path) -> None:
    event = capture(tmp_path, lambda: torch.tensor(-0.0).item()).one("_local_scalar_dense")
    record = event.outputs["0"]
    assert record["dtype"] == "python_float"
    data = torch.frombuffer(bytearray(struct.pack("<d", -0.0)), dtype=torch.uint8)
    assert record["mix64"] == mix(data)


def test_an_operator_that_raises_leaves_an_event(tmp_path: Path) -> None:
    def program() -> None:
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        torch.ones(1)

    captured = capture(tmp_path, program)
    event = captured.one("mm")
    assert event.raised
    assert list(event.inputs) == ["self", "mat2"]
    assert not event.outputs


def test_autocast_is_transparent(tmp_path: Path) -> None:
    x, y = torch.ones(2, 2), torch.ones(2, 2)

    def program() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x @ y

    captured = capture(tmp_path, program)
    assert captured.names == ["_to_copy", "_to_copy", "mm"]
    assert captured.one("mm").outputs["0"]["dtype"] == "bfloat16"


def test_functorch_wrappers_show_their_inner_calls(tmp_path: Path) -> None:
    x = torch.randn(3, 2)

    def program() -> None:
        torch.func.vmap(lambda row: row.sin() + 1)(x)
        torch.func.grad(lambda v: (v * v).sum())(x)

    captured = capture(tmp_path, program)
    assert captured.one("sin").inputs["self"]["shape"] == [3, 2]
    assert captured.one("sum").phase == "other"
    assert captured.all("mul")


def test_subclasses_desugar(tmp_path: Path) -> None:
    parts = [torch.randn(2, 3), torch.randn(1, 3)]

    def program() -> None:
        ragged = torch.nested.nested_tensor(parts, layout=torch.jagged)
        (ragged * 2).values().sum()

    event = next(e for e in capture(tmp_path, program).all("mul"))
    assert event.inputs["self"]["shape"] == [3, 3]
    assert event.inputs["self"]["mix64"] == mix(torch.cat(parts))


def test_meta_and_fake_tensors_make_no_events(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def program() -> None:
        torch.ones(2, device="meta") + 1
        with FakeTensorMode():
            torch.ones(2) + 1
        torch.zeros(1)

    assert capture(tmp_path, program).names == ["zeros"]


def test_torch_tensor_is_a_source(tmp_path: Path) -> None:
    captured = capture(tmp_path, lambda: torch.tensor([1.0, 2.0]) * 2)
    assert captured.names == ["mul"]
    assert captured.one("mul").inputs["self"]["producers"] == []


@torch.library.custom_op("opguard_tests::twice", mutates_args=(), schema="(Tensor x) -> Tensor")
def twice(x: torch.Tensor) -> torch.Tensor:
    return x + x


@torch.library.custom_op("opguard_tests::bump_", mutates_args=("x",), schema="(Tensor(a!) x) -> ()")
def bump_(x: torch.Tensor) -> None:
    x.add_(1)


def test_a_custom_operator_is_one_event(tmp_path: Path) -> None:
    x = torch.ones(3)

    def program() -> None:
        twice(x)
        bump_(x)

    captured = capture(tmp_path, program)
    assert [event.op for event in captured.events] == [
        "opguard_tests.twice.default",
        "opguard_tests.bump_.default",
    ]
    assert captured.events[1].outputs["x!"]["mix64"] == mix(torch.full((3,), 2.0))


class Cube(torch.autograd.Function):
    """x to the third."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return 3 * grad * x.square()


def test_an_autograd_function_shows_its_calls(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    captured = capture(tmp_path, lambda: Cube.apply(x).sum().backward())
    assert captured.names == ["mul", "mul", "sum", "ones_like", "mul", "pow", "mul"]
    assert [e.phase for e in captured.events] == ["other"] * 4 + ["backward"] * 3
    assert captured.one("pow").line is not None


def test_batch_norm_writes_its_statistics_in_training_only(tmp_path: Path) -> None:
    layer, x = nn.BatchNorm1d(3), torch.randn(5, 3)

    def program() -> None:
        layer(x)
        layer.eval()
        layer(x)

    first, second = capture(tmp_path, program).all("native_batch_norm")
    assert {"running_mean!", "running_var!"} <= set(first.outputs)
    assert first.outputs["running_mean!"]["mix64"] == mix(layer.running_mean)
    assert not [slot for slot in second.outputs if slot.endswith("!")]
    assert second.inputs["running_mean"]["producers"] == [[first.seq, "running_mean!"]]


@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")  # quantized tensors, by torch
def test_sparse_and_quantized_tensors_have_a_record_a_component(tmp_path: Path) -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])

    def program() -> None:
        sparse = dense.to_sparse()
        sparse * 2
        torch.quantize_per_tensor(dense, 0.5, 1, torch.quint8).dequantize()

    captured = capture(tmp_path, program)
    product = captured.one("mul")
    assert {"self.indices", "self.values"} <= set(product.inputs)
    assert product.outputs["0.values"]["mix64"] == mix(torch.tensor([4.0, 6.0]))
    quantized = captured.one("quantize_per_tensor")
    assert set(quantized.outputs) == {"0.int_repr", "0.scale", "0.zero_point"}


def test_random_operators_have_their_state_as_input(tmp_path: Path) -> None:
    def program() -> None:
        torch.manual_seed(1)
        torch.rand(2)
        torch.rand(2)
        torch.manual_seed(1)
        torch.rand(2)

    first, second, third = capture(tmp_path, program).all("rand")
    assert first.inputs["rng"]["mix64"] == third.inputs["rng"]["mix64"]
    assert first.inputs["rng"]["mix64"] != second.inputs["rng"]["mix64"]


def test_arguments_are_canonical(tmp_path: Path) -> None:
    x = torch.ones(2, 2)

    def program() -> None:
        torch.sum(x, dim=-1)
        x.add(1)
        x.add(1.0)
        torch.zeros(1, dtype=torch.int64, device="cpu")
        torch.randint(3, (1,))

    captured = capture(tmp_path, program)
    assert captured.one("sum").arguments == "dim=[-1], keepdim=False, dtype=None"
    integer, floating = (event.arguments for event in captured.all("add"))
    assert (integer, floating) == ("other=1, alpha=1", "other=1.0, alpha=1")
    assert "dtype=int64" in captured.one("zeros").arguments
    assert "dtype=int64" in captured.one("randint").arguments  # the schema's default


@pytest.mark.mechanism("dispatch", reason="only a mode sees the call of torch.cond")
def test_cond_is_one_event_and_works(tmp_path: Path) -> None:
    x = torch.ones(3)
    results = []

    def program() -> None:
        results.append(torch.cond(x.sum() > 2, lambda v: v.sin(), lambda v: v.cos(), (x,)))

    event = capture(tmp_path, program).one("cond")
    assert torch.equal(results[0], x.sin())
    assert event.outputs["0[0]" if "0[0]" in event.outputs else "0"]["mix64"] == mix(x.sin())


def test_a_mode_the_program_leaves_behind_stays(tmp_path: Path) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

    class Left(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    left = Left()
    try:
        captured = capture(tmp_path, lambda: (left.__enter__(), torch.ones(1)))
        assert captured.names == ["ones"]
        assert _get_current_dispatch_mode() is left
    finally:
        left.__exit__(None, None, None)
    assert _get_current_dispatch_mode() is None
