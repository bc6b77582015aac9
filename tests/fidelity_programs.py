"""Programs whose behaviour capture could change, and what is compared of it."""

from __future__ import annotations

import copy
import io
import pickle
import random
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

Program = Callable[[], Any]


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
        torch.set_warn_always(True)
        try:
            value = program()
        except Exception as raised:  # noqa: BLE001  (whatever it raises is its behaviour)
            error = f"{type(raised).__name__}: {raised}"
        finally:
            torch.set_warn_always(False)
    # A traceback in a warning starts with frames of the test's own.
    told = [f"{one.category.__name__}: {one.message}".split("in behaviour")[-1] for one in warned]
    after = random.getstate(), switches()
    return lambda: (bits(value), error, told, bits(torch.get_rng_state()), after)


# Higher-order operators, compilers, tracers


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


def scripted_module() -> Any:
    module = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    x = leaf(2, 3)
    module(x).sum().backward()
    return x.grad, torch.jit.freeze(module.eval())(torch.ones(1, 3))


def functorch() -> Any:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum()

    x, rows = torch.arange(3.0), torch.ones(2, 3)
    noise = torch.func.vmap(lambda v: v + torch.randn(3), randomness="different")
    return [
        torch.func.grad(loss)(x), torch.func.hessian(loss)(x), torch.func.jvp(loss, (x,), (x,)),
        torch.func.vmap(torch.func.grad(loss))(rows), torch.func.jacrev(torch.sin)(x), noise(rows),
    ]  # fmt: skip


# Autograd


def checkpointed() -> Any:
    x = leaf(4)
    for reentrant in (False, True):
        y = checkpoint(lambda v: torch.dropout(v.sin(), 0.5, True), x, use_reentrant=reentrant)
        y.sum().backward()
    return x.grad


def saved_through_hooks() -> Any:
    x, seen = leaf(3), []

    def pack(tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
        seen.append(tensor.data_ptr() == x.data_ptr())
        return len(seen), tensor.detach() * 2

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[1] / 2):
        y = (x.exp() * x).sum()
    y.backward()
    return x.grad, seen


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


# Custom operators


@torch.library.custom_op(
    "opguard_fidelity::scaled", mutates_args=(), schema="(Tensor x, float factor) -> Tensor"
)
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return (x * factor).contiguous()


def _keep_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


scaled.register_autograd(
    lambda ctx, grad: (scaled(grad, ctx.factor), None), setup_context=_keep_factor
)


@torch.library.custom_op(
    "opguard_fidelity::bump_", mutates_args=("x",), schema="(Tensor(a!) x, Tensor by) -> ()"
)
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


def stored_copies() -> Any:
    layer, base = nn.Linear(2, 2), torch.arange(6.0)
    views = [base[:3], base[3:], nn.Parameter(base)]
    views[0].tag = "kept"
    file = io.BytesIO()
    torch.save({"layer": layer.state_dict(), "views": views}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    pickled = pickle.loads(pickle.dumps(views))
    copied = copy.deepcopy((layer, views, layer.weight))
    copied[0].weight.data.add_(1)
    return (
        list(loaded["layer"].values()), *(loaded["views"], pickled, copied[1]), *layer.parameters(),
        copied[2] is copied[0].weight, [type(view).__name__ for view in copied[1] + pickled],
        [one[0].untyped_storage()._cdata == one[1].untyped_storage()._cdata
         for one in (loaded["views"], pickled, copied[1])],
        [vars(one[0]) for one in (loaded["views"], pickled, copied[1])], len(file.getvalue()),
    )  # fmt: skip


# Others that observe


class Logging(TorchDispatchMode):
    """A mode of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def training_step() -> Any:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(5, 3)
    (model(x).max() + model(x).prod(0).sum() + model(x).median()).backward()
    optimizer.step()
    return list(model.state_dict().values())


def observed_by_a_mode() -> Any:
    with Logging() as mode:
        state = training_step()
    return state, mode.names


def profiled() -> Any:
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        state = training_step()
    return state, [event.name for event in profile.function_events]
