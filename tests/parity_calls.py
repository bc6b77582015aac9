"""Short programs about transforms, autograd functions, threads and custom operators."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from captured import unseen
from native_support import OLDEST
from parity_values import program


@program
def transforms() -> None:
    from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vjp, vmap

    x = torch.randn(4, 3)

    def f(v: torch.Tensor) -> torch.Tensor:
        return (v.sin() * v).sum()

    grad(f)(x[0])
    vmap(grad(f))(x)
    vmap(f, in_dims=1)(x)
    jacrev(torch.sin)(x[0])
    jacfwd(torch.cos)(x[0])
    jvp(torch.exp, (x,), (x,))
    vjp(torch.tanh, x)[1](x)
    vmap(lambda v: v + torch.rand(3), randomness="different")(x)
    layer = nn.Linear(3, 2)
    functional_call(layer, dict(layer.named_parameters()), (x,))
    vmap(lambda v: functional_call(layer, dict(layer.named_parameters()), (v,)))(x)
    vmap(lambda a, b: a @ b)(x.unsqueeze(1), x.unsqueeze(2))
    torch.func.functionalize(lambda v: v.clone().add_(1))(x)


@program
def jacobians() -> None:
    x = torch.randn(3)
    torch.autograd.functional.jacobian(lambda v: v.square(), x)
    torch.autograd.functional.hvp(lambda v: v.pow(3).sum(), x, torch.ones(3))
    torch.autograd.functional.jacobian(lambda v: v.square(), x, vectorize=True)
    y = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
    torch.autograd.grad(g.sum(), y)
    torch.autograd.grad(y.exp(), y, torch.eye(3), is_grads_batched=True)


class Scaled(torch.autograd.Function):
    """x y, in-place in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        """Both."""
        ctx.save_for_backward(x, y)
        return x * y, x.add_(0)

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> Any:
        """Both."""
        x, y = ctx.saved_tensors
        return first * y + second, (first * x).sum(0)


class Marked(torch.autograd.Function):
    """Writes its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """In place."""
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Twice."""
        return gradient.mul(2)


class Separate(torch.autograd.Function):
    """With ``setup_context`` and vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        """exp."""
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        """Keep the output."""
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """exp."""
        return gradient * ctx.saved_tensors[0]


@program
def autograd_functions() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    y = torch.randn(3, requires_grad=True)
    a, b = Scaled.apply(x.clone(), y)
    (a + b).sum().backward()
    Marked.apply(x * 1).sum().backward()
    Separate.apply(x).sum().backward()
    torch.func.vmap(torch.func.grad(lambda v: Separate.apply(v).sum()))(x.detach())


@program
def hooks() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    seen = []
    model[0].register_forward_hook(lambda m, a, out: out * 1.5)
    model[1].register_forward_pre_hook(lambda m, a: (a[0] + 0.1,))
    model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    model[0].register_full_backward_pre_hook(lambda m, go: (go[0] + 0,))
    model[0].weight.register_hook(lambda g: g.clamp(-1, 1))
    model[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm()))
    x = torch.randn(5, 3, requires_grad=True)
    x.register_hook(lambda g: seen.append(g.sum()))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.mul(1)):
        y = model(x)
    y.register_hook(lambda g: g * 2)
    y.grad_fn.register_hook(lambda gi, go: None)
    y.grad_fn.register_prehook(lambda go: None)
    y.square().mean().backward()
    with torch.autograd.graph.save_on_cpu():
        model(x).sum().backward()


@program
def optimizer_in_backward() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        model(torch.randn(5, 3)).mean().backward()


@program
def errors() -> None:
    x = torch.ones(2, 3)
    for call in (
        lambda: x @ x, lambda: x.view(7), lambda: torch.cat([x, torch.ones(1)]), lambda: x[5],
        lambda: torch.linalg.cholesky(-torch.eye(2)), lambda: torch.ones(1).requires_grad_().add_(1),
        lambda: torch.ones(2).index_select(0, torch.tensor([9])), lambda: x.sum().backward("no"),
    ):  # fmt: skip
        try:
            call()
        except (RuntimeError, IndexError, TypeError):
            torch.ones(1)
    y = torch.ones(2, requires_grad=True)
    z = y.exp()
    z.add_(1)
    try:
        z.sum().backward()
    except RuntimeError:
        torch.ones(1)


@program
def nothing_recorded() -> None:
    x = torch.ones(3, device="meta")
    (x + 1).sum()
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        (torch.ones(3) * 2).sum()
    with torch.inference_mode():
        y = torch.ones(3) + 1
        y.add_(1)
    y.clone().add_(2)
    torch.ones(3).to("meta")
    with torch.profiler.record_function("a block"):
        y.sum()


@program
def loader() -> None:
    data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    for workers in (0, 1):  # with more they hand over in any order
        for x, y in DataLoader(data, batch_size=2, shuffle=True, num_workers=workers):
            (x * 2).sum() + y.sum()


@program
def threads_one_after_another() -> None:
    model = nn.Linear(3, 2)

    def work() -> None:
        model(torch.randn(4, 3)).sum().backward()

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    model(torch.randn(4, 3)).sum().backward()


@program
def threads_at_once() -> None:
    ready = [threading.Event() for _ in range(3)]

    def work(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(4, 3, generator=generator, requires_grad=True)
        ready[number].set()
        for _ in range(5):
            (x.sin() * x).sum().backward()

    threads = []
    for number in range(3):
        threads.append(threading.Thread(target=work, args=(number,)))
        threads[-1].start()
        ready[number].wait()  # threads are numbered in the order of their first calls
    for thread in threads:
        thread.join()


@program
def backward_on_another_thread() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    loss = model(torch.randn(5, 3)).mean()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


@torch.library.custom_op(
    "opguard_parity::scale", mutates_args=(), schema="(Tensor x, float by) -> Tensor"
)
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    """x by."""
    return x * by


@torch.library.custom_op(
    "opguard_parity::fill", mutates_args=("x",), schema="(Tensor(a!) x, Tensor[] others) -> ()"
)
def fill(x: torch.Tensor, others: list[torch.Tensor]) -> None:
    """In place."""
    x.fill_(1.0).add_(others[0])


scale.register_autograd(
    lambda ctx, g: (g * 2, None), setup_context=lambda ctx, inputs, output: None
)


@program
def custom_operators() -> None:
    x = torch.randn(3, requires_grad=True)
    scale(x, 2.0).sum().backward()
    y = torch.zeros(3)
    for _ in range(3):
        fill(y, [x.detach(), torch.ones(2)])
    with torch.no_grad():
        scale(x, 3.0)


@program
def writes_that_nobody_saw() -> None:
    x = torch.ones(3)
    with unseen():
        x.add_(1)
    x.sin()
    fill(x, [torch.ones(1)])
    fill(x, [torch.ones(1)])
    with unseen():
        x.add_(1)
    x.cos()
    fill(x[:2], [torch.ones(1)])
    x.data.mul_(2)
    with unseen():
        x[1] = 5
    (x * 2).sum()


@program
def scripted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = torch.jit.script(_scripted)
        for _ in range(3):
            f(torch.ones(3))


def _scripted(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() + 1.0
    if bool(y.sum() > 0):
        y = y.relu()
    return y.view(-1) * 2


class Named(torch.Tensor):
    """A subclass without dispatch of its own."""


class Wrapped(torch.Tensor):
    """Holds a tensor and hands calls on to it."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        """A wrapper of the same shape."""
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """On the inner tensors."""
        given = torch.utils._pytree.tree_map_only(Wrapped, lambda t: t.inner, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(torch.Tensor, Wrapped, func(*given[0], **given[1]))

    def __tensor_flatten__(self) -> Any:
        """The inner tensor."""
        return ["inner"], None


@program
def subclasses() -> None:
    if not OLDEST:  # where no mode may be active
        x = torch.ones(3).as_subclass(Named)
        (x * 2).sum()
    (Wrapped(torch.ones(3)) * 2).sum()
    nn.Parameter(torch.ones(2)).mul(2)
    nn.UninitializedParameter()


@program
def foreach_functions() -> None:
    a, b = [torch.randn(2), torch.randn(3, 2)], [torch.randn(2), torch.randn(3, 2)]
    torch._foreach_add(a, b, alpha=2)
    torch._foreach_mul_(a, 2.0)
    torch._foreach_addcdiv_(a, b, b, [1.0, 2.0])
    torch._foreach_norm(a)
    torch._foreach_copy_(a, b)
    torch._foreach_zero_(b)
    torch._foreach_lerp_(a, b, 0.5)
    torch._foreach_max(a)
    torch.stack(a[:1] * 2)
    torch.split(a[1], [1, 2])
    torch.unbind(a[1])[0].add_(1)
    torch.meshgrid(a[0], a[0], indexing="ij")
    torch.broadcast_tensors(a[0], a[1])
    torch.nn.utils.parameters_to_vector(a)
    torch._utils._flatten_dense_tensors(a)
