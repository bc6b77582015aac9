"""Under the recorder a program behaves and computes exactly as without capture."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import shutil
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import captured
from captured import Captured, capture
from native_support import needs_native

pytestmark = needs_native

Program = Callable[[], Any]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def only_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MECHANISM", "native")


def bits(value: Any) -> Any:
    """Everything about a value that a program can see and that is the same in each run."""
    if isinstance(value, torch.Tensor):
        dense = value.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        data = dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        node = type(value.grad_fn).__name__
        version = None if value.is_inference() else value._version
        return str(value.dtype), tuple(value.shape), value.stride(), data, node, version
    if isinstance(value, (tuple, list)):
        return [bits(item) for item in value]
    return value


def switches() -> tuple[Any, ...]:
    """What an operator call may leave switched over on its thread."""
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled(),
        torch.is_autocast_enabled("cpu"), torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(), torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(), torch._C._autograd._saved_tensors_hooks_is_enabled(),
    )  # fmt: skip


def behaviour(program: Program) -> Callable[[], tuple[Any, ...]]:
    """What ``program`` returns, raises, warns of, draws and leaves behind; read when called."""
    torch.manual_seed(0)
    random.seed(0)
    value, error = None, ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            value = program()
        except Exception as raised:  # noqa: BLE001  (whatever it raises is its behaviour)
            error = f"{type(raised).__name__}: {raised}"
    # A traceback in a warning starts with frames of the test's own.
    told = [f"{one.category.__name__}: {one.message}".split("in behaviour")[-1] for one in warned]
    after = random.getstate(), switches()
    return lambda: (bits(value), error, told, bits(torch.get_rng_state()), after)


def same(folder: Path, program: Program) -> tuple[Captured, tuple[Any, ...]]:
    """Its events and its behaviour, which is that without capture."""
    behaviour(program)  # what is imported, compiled or warned of only once
    plain = behaviour(program)()
    seen: list[Callable[[], tuple[Any, ...]]] = []
    events = capture(folder, lambda: seen.append(behaviour(program)))
    assert seen[0]() == plain
    assert not events.coverage["lost_events"]
    return events, plain


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


# Higher-order operators, compilers, tracers


def conditional() -> Any:
    x = leaf(3)
    y = torch.cond(x.sum() > 2, lambda v: v.sin(), lambda v: v.cos(), (x,))
    y.sum().backward()
    return y, x.grad


def loop() -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(
        lambda i, _: i < 3, lambda i, v: (i + 1, v.sin()), (torch.tensor(0), torch.ones(3))
    )


def attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))
    return flex_attention(q, k, v, score_mod=lambda score, _b, _h, i, j: score + (i - j))


def compiled(backend: str) -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    layer = nn.Linear(4, 4)
    step = torch.compile(lambda x: layer(x).relu(), backend=backend)
    results = []
    for _ in range(2):
        x = leaf(3, 4)
        step(x).sum().backward()
        results += [x.grad, layer.weight.grad.clone()]
    counters = torch._dynamo.utils.counters
    return results, dict(counters["stats"]), dict(counters["graph_break"])


def exported() -> Any:
    program = torch.export.export(nn.Linear(3, 2), (torch.ones(2, 3),))
    return str(program.graph), program.module()(torch.ones(2, 3))


def traced() -> Any:
    function = torch.jit.trace(lambda x: x.sin() + x.sum() * 2, (torch.ones(3),))
    return str(function.graph), function(torch.arange(3.0))


def scripted() -> Any:
    @torch.jit.script
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        for i in range(n):
            x = x.sin() if bool(x.sum() > 0) else x.cos() + i
        return x

    results = []
    for _ in range(3):  # the third one runs optimised
        x = leaf(3)
        function(x, 3).sum().backward()
        results.append(x.grad)
    return results


def functorch() -> Any:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum()

    x, rows = torch.arange(3.0), torch.ones(2, 3)
    noise = torch.func.vmap(lambda v: v + torch.randn(3), randomness="different")
    return [
        torch.func.grad(loss)(x), torch.func.hessian(loss)(x), torch.func.jvp(loss, (x,), (x,)),
        torch.func.vmap(torch.func.grad(loss))(rows), torch.func.jacrev(torch.sin)(x), noise(rows),
    ]  # fmt: skip


COMPILERS: dict[str, tuple[Program, list[str] | None]] = {
    "cond": (conditional, None),
    "while_loop": (
        loop,
        ["ones", "lt", "_local_scalar_dense", "_local_scalar_dense"]
        + ["add", "sin", "lt", "_local_scalar_dense"] * 3,
    ),
    "flex_attention": (attention, None),
    "eager": (lambda: compiled("eager"), None),
    "aot_eager": (lambda: compiled("aot_eager"), None),
    "export": (exported, ["empty", "empty", "uniform_", "uniform_", "ones", "ones", "addmm"]),
    "trace": (traced, None),
    "script": (scripted, None),
    "functorch": (functorch, None),
}


@pytest.mark.parametrize("name", COMPILERS)
def test_compilers_and_transforms(tmp_path: Path, name: str) -> None:
    program, names = COMPILERS[name]
    events, (_, error, *_) = same(tmp_path, program)
    assert not error
    assert not events.coverage["opaque_calls"]
    assert names is None or events.names == names


# Autograd


def checkpointed() -> Any:
    x = leaf(4)
    for reentrant in (False, True):
        checkpoint(lambda v: torch.dropout(v.sin(), 0.5, True), x, use_reentrant=reentrant).sum().backward()
    return x.grad


def hooks_on_saved_tensors() -> Any:
    x, seen = leaf(3), []

    def pack(tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
        seen.append(tensor.data_ptr() == x.data_ptr())
        return len(seen), tensor.detach() * 2

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[1] / 2):
        y = (x.exp() * x).sum()
    y.backward()
    return x.grad, seen


def saved_on_cpu() -> Any:
    x = leaf(3)
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).sum()
    y.backward()
    return x.grad


def double_backward() -> Any:
    x = leaf(3)
    (first,) = torch.autograd.grad((x**3).sin().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return first, second


def leaf_in_place() -> Any:
    return leaf(3).add_(1)


def saved_and_overwritten() -> Any:
    y = leaf(3).sigmoid()
    y.mul_(2)
    y.sum().backward()


def graph_already_freed() -> Any:
    y = leaf(3).exp().sum()
    y.backward()
    y.backward()


def view_of_several() -> Any:
    leaf(4).exp().split(2)[0].add_(1)


def nondeterministic() -> Any:
    torch.use_deterministic_algorithms(mode=True)
    try:
        return torch.empty(3), torch.ones(3).put_(torch.tensor([0]), torch.tensor([2.0]))
    finally:
        torch.use_deterministic_algorithms(mode=False)


def anomaly() -> Any:
    x = torch.zeros(2, requires_grad=True)
    with torch.autograd.detect_anomaly():
        (x.sqrt() * 0).sum().backward()


def inference() -> Any:
    with torch.inference_mode():
        x = torch.ones(2, 3)
        y = nn.functional.linear(x, torch.ones(4, 3)).add_(1)
    plain = y.clone()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        leaf(2, 4).mul(y)
    return y.is_inference(), y, plain


def autocast() -> Any:
    x, w = leaf(4, 4), leaf(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = (x @ w).softmax(-1) @ w  # the second cast of w is cached
    y.float().sum().backward()
    return y, x.grad, w.grad


AUTOGRAD: dict[str, tuple[Program, str, list[str]]] = {
    "checkpoint": (checkpointed, "", []),
    "saved hooks": (hooks_on_saved_tensors, "", []),
    "saved on cpu": (saved_on_cpu, "", []),
    "double backward": (double_backward, "", []),
    "leaf in place": (leaf_in_place, "a leaf Variable that requires grad", []),
    "overwritten": (saved_and_overwritten, "is at version 1; expected version 0", []),
    "freed graph": (graph_already_freed, "backward through the graph a second time", []),
    "views": (view_of_several, "is a view and is being modified inplace", []),
    "deterministic": (nondeterministic, "does not have a deterministic implementation", []),
    "anomaly": (anomaly, "returned nan values", []),
    "inference": (inference, "", []),
    "autocast": (autocast, "", []),
}


@pytest.mark.parametrize("name", AUTOGRAD)
def test_autograd(tmp_path: Path, name: str) -> None:
    program, message, names = AUTOGRAD[name]
    events, (_, error, *_) = same(tmp_path, program)
    assert message in error if message else not error
    print(name, error, events.names)
    assert not names or events.names == names


# Custom operators


@torch.library.custom_op("opguard_fidelity::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return (x * factor).contiguous()


def _keep_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


scaled.register_autograd(
    lambda ctx, grad: (scaled(grad, ctx.factor), None), setup_context=_keep_factor
)


@torch.library.custom_op("opguard_fidelity::bump_", mutates_args=("x",))
def bump(x: torch.Tensor, by: torch.Tensor) -> None:
    x.add_(by)
    if by.numel() == 3:
        raise ValueError("three")


def custom_operators() -> Any:
    x = leaf(2)
    scaled(x, 3.0).sum().backward()
    y = torch.zeros(2)
    bump(y, torch.ones(2))
    with pytest.raises(ValueError, match="three"):
        bump(torch.zeros(3), torch.ones(3))
    return x.grad, y


def test_custom_operators_are_one_event_each(tmp_path: Path) -> None:
    events, (_, error, *_) = same(tmp_path, custom_operators)
    assert not error
    assert events.names == [
        "randn", "scaled", "sum", "ones_like", "scaled",
        "zeros", "ones", "bump_", "zeros", "ones", "bump_",
    ]  # fmt: skip
    assert [list(event.outputs) for event in events.all("bump_")] == [["x!"], []]
    assert [event.raised for event in events.all("bump_")] == [False, True]


# References and memory


def gradient_buffers() -> Any:
    """Whether the very buffer that backward computed becomes the gradient."""
    stolen, shared, summed = leaf(3), leaf(3), leaf(3)
    buffers: list[int] = []
    stolen.register_hook(lambda grad: buffers.append(grad.data_ptr()))
    (stolen * 2).sum().backward()
    kept = torch.ones(3)
    shared.backward(kept)  # the program holds this one
    for _ in range(2):
        (summed * 2 + summed.sin()).sum().backward()
        buffers.append(summed.grad.data_ptr())
    return (
        stolen.grad.data_ptr() == buffers[0], shared.grad.data_ptr() == kept.data_ptr(),
        buffers[1] == buffers[2], stolen.grad, shared.grad, summed.grad,
    )  # fmt: skip


def test_gradients_are_taken_over_and_added_up_in_place(tmp_path: Path) -> None:
    events, (value, *_) = same(tmp_path, gradient_buffers)
    assert value[:3] == [True, False, True]
    assert len(events.all("add_")) == 3  # where both gradients meet, twice, and in the second grad


def lifetimes() -> Any:
    """When tensors and storages die, told between the steps of a forward and a backward pass."""
    diary: list[str] = []

    def watched(name: str, tensor: torch.Tensor) -> torch.Tensor:
        weakref.finalize(tensor, diary.append, f"{name} dies")
        weakref.finalize(tensor.untyped_storage(), diary.append, f"storage of {name} dies")
        return tensor

    x = watched("x", torch.ones(3))
    y = watched("y", x.sin())
    del x
    diary.append("after sin")
    y = watched("z", torch.add(watched("exp", y.exp()), y))
    diary.append("after add")
    y.mul_(watched("factor", torch.ones(3)))
    diary.append("after mul_")
    w = leaf(3)
    loss = watched("loss", (watched("product", w * y)).sum())
    del y
    diary.append("before backward")
    loss.backward()
    diary.append("after backward")
    del loss
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(watched("bad", torch.ones(2, 3)), torch.ones(2, 3))
    diary.append("end")
    return diary, sys.getrefcount(w), w.grad._use_count()


def test_tensors_die_where_they_do_without_capture(tmp_path: Path) -> None:
    _, (value, error, *_) = same(tmp_path, lifetimes)
    print(value)
    assert not error


def peak_of(program: Program) -> int:
    """Most bytes of memory that the process has held meanwhile, above what it held before."""
    status = Path("/proc/self/status")

    def read(what: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(what))
        return int(line.split()[1]) * 1024

    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = read("VmRSS")
    program()
    return read("VmHWM") - before


def chain() -> None:
    """At most two of its tensors live at a time, 8 MiB each, in either direction."""
    x = torch.ones(2 * MIB, requires_grad=True)
    y = x * 1
    with torch.no_grad():
        for _ in range(8):
            y = y.sin().add_(1)
    z = x
    for _ in range(8):
        z = z * 2  # saves nothing
    z.sum().backward()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
def test_memory_peaks_where_it_does_without_capture(tmp_path: Path) -> None:
    chain()
    plain = peak_of(chain)
    peaks: list[int] = []

    def program() -> None:
        chain()  # the recorder's own tables
        peaks.append(peak_of(chain))

    capture(tmp_path, program)
    print(plain / MIB, peaks[0] / MIB)
    assert 24 * MIB < plain < 56 * MIB
    assert peaks[0] < plain + 4 * MIB


def lazy_storages() -> Any:
    """What reading as such must not do: copies on write, zeros that are nowhere, conj bits."""
    x = torch.arange(4.0)
    lazy = torch._lazy_clone(x)
    y = lazy + x
    both = torch._C._is_cow_tensor(x), torch._C._is_cow_tensor(lazy)
    lazy.add_(1)
    zeros = torch._efficientzerotensor((3,))
    turned = torch.view_as_complex(torch.ones(2, 2)).conj()
    z = turned * 2
    sparse = torch.eye(3).to_sparse()
    w = torch.sparse.mm(sparse, torch.ones(3, 1))
    shared = torch.zeros(2, 2)[:1]
    return (
        both, torch._C._is_cow_tensor(lazy), x, lazy, y, zeros + torch.ones(3), turned.is_conj(), z,
        sparse.is_coalesced(), sparse._nnz(), w, shared.sin(), shared.untyped_storage().nbytes(),
    )  # fmt: skip


def test_reading_changes_no_tensor(tmp_path: Path) -> None:
    _, (value, error, *_) = same(tmp_path, lazy_storages)
    assert not error
    assert value[0] == [True, True]


class Tagged(torch.Tensor):
    """A subclass without behaviour of its own."""


def stored_copies() -> Any:
    layer, base = nn.Linear(2, 2), torch.arange(6.0)
    views = [base[:3], base[3:], base.as_subclass(Tagged)]
    views[0].tag = "kept"
    file = io.BytesIO()
    torch.save({"layer": layer.state_dict(), "views": views}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    pickled = pickle.loads(pickle.dumps(views))  # noqa: S301  (its own)
    copied = copy.deepcopy((layer, views, layer.weight))
    copied[0].weight.data.add_(1)
    return (
        list(loaded["layer"].values()), loaded["views"], pickled, copied[1], list(layer.parameters()),
        copied[2] is copied[0].weight, [type(view).__name__ for view in copied[1] + pickled],
        [one[0].untyped_storage()._cdata == one[1].untyped_storage()._cdata
         for one in (loaded["views"], pickled, copied[1])],
        [vars(one[0]) for one in (loaded["views"], pickled, copied[1])], len(file.getvalue()),
    )  # fmt: skip


def test_copies_and_files(tmp_path: Path) -> None:
    events, (value, error, *_) = same(tmp_path, stored_copies)
    assert not error
    print(value, events.names)
