"""Short programs about memory, layouts, transforms and threads: who wrote which bytes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

PROGRAMS: dict[str, Callable[[], Any]] = {}
"""By name: what a parity test runs under each mechanism."""


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Memory that nothing wrote holds NaN."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def program(run: Callable[[], Any]) -> Callable[[], Any]:
    """Add ``run`` to ``PROGRAMS``."""
    PROGRAMS[run.__name__] = run
    return run


@program
def views_in_place() -> None:
    x = torch.zeros(4, 6)
    x[1] += 1
    x[:, 2].add_(2)
    x.t()[3].mul_(3)
    x.view(24)[::5].fill_(7.0)
    x.unfold(1, 2, 2).sum()
    x.diagonal().copy_(torch.arange(4.0))
    x.expand(2, 4, 6).sum(0)
    x.as_strided((2, 2), (6, 1), 3).exp_()
    x.unsqueeze_(0).squeeze_().transpose_(0, 1).sum()
    a, b = x.chunk(2)
    a.sub_(b)
    x.flip(0).narrow(0, 1, 2).contiguous()
    x.movedim(0, 1).reshape(-1).cumsum_(0)
    torch.ops.aten.alias(x).neg_()
    x.view(torch.int32).bitwise_xor_(1)


@program
def views_with_gradients() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    y = x * 2
    y[0] = 1.0
    y[:, 1:3].mul_(2)
    z = y.view(12)
    z.add_(1)
    y.sum().backward()
    (x[1:] @ x[:2].t()).diagonal().sum().backward()
    w = torch.randn(4, requires_grad=True)
    with torch.no_grad():
        w.add_(1)
    w.data.mul_(2)
    w.detach().sub_(1)
    (w.exp() * w).sum().backward()


@program
def indexing() -> None:
    x = torch.randn(5, 4)
    i = torch.tensor([0, 3, 3])
    x[i].sum()
    x[i, i] = 1.0
    x.index_put_((i,), torch.ones(3, 4), accumulate=True)
    x[x > 0] = 0.5
    x.index_add_(0, i, torch.ones(3, 4)).index_fill_(1, i, 2.0).index_copy_(0, i, torch.zeros(3, 4))
    x.scatter_(0, i.view(1, 3), 9.0).scatter_add_(1, i.view(3, 1), torch.ones(3, 1))
    x.scatter_reduce_(0, i.view(1, 3), torch.ones(1, 3), "amax")
    x.gather(1, i.view(3, 1)).masked_fill_(torch.tensor([[True], [False], [True]]), 3.0)
    x.take(i).put_(i - 1, torch.ones(3))
    torch.where(x > 0, x, -1.0)
    x.masked_select(x > 1)
    x.nonzero()
    x[..., None, 1:3, :].clone()
    bool(x.any()), int(x.argmax()), float(x.sum()), x.tolist(), x.max().item()


@program
def void_memory() -> None:
    with deterministic():
        _void_memory()


def _void_memory() -> None:
    x = torch.empty(3, 4)
    x[:, :2] = 1.0
    x[:, :2].sin()
    x.clone()[:, 0].cos()
    x.fill_(2.0).sum()
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    z = x.new_empty(6)
    z.index_fill_(0, torch.tensor([0, 1]), 1.0)
    z.exp()
    z.zero_().exp()
    torch.empty(2, 3).uniform_()
    torch.empty_strided((2, 2), (1, 2)).copy_(torch.ones(2, 2))
    torch.zeros(2).resize_(4).add_(1)
    torch.empty(0).sum()
    a = torch.empty(4)
    a.narrow(0, 1, 2).normal_()
    torch.cat([a, a])
    a.set_(torch.ones(6).untyped_storage(), 1, (2,), (2,)).sum()


@program
def outputs_given() -> None:
    out, small = torch.empty(3, 3), torch.empty(0)
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    torch.mm(x, y, out=out)
    torch.cat([x, y], out=small.resize_(0))
    torch.max(x, 1, out=(torch.empty(3), torch.empty(3, dtype=torch.long)))
    torch.sort(x, out=(torch.empty(3, 3), torch.empty(3, 3, dtype=torch.long)))
    torch.arange(5, out=torch.empty(0, dtype=torch.long))
    torch.randn(3, out=torch.empty(3))
    torch.linalg.qr(x, out=(torch.empty(3, 3), torch.empty(3, 3)))
    torch.sub(x, y, out=x)
    torch.stack([x, y], out=torch.empty(2, 3, 3))
    torch.cumsum(x, 0, out=y.t())


@program
def storages() -> None:
    x = torch.arange(6.0)
    storage = x.untyped_storage()
    storage.resize_(40)
    x.set_(storage, 0, (10,), (1,))
    x[:6].mul_(2)
    x[:6].sum()
    storage.resize_(0)
    storage.resize_(40)
    x.fill_(1.0)
    x.sum()
    x.resize_(2, 3).sum()
    x.resize_as_(torch.empty(4, 4)).zero_().sum()
    y = torch.tensor([1.0, 2.0], requires_grad=True)
    y.data = torch.tensor([3.0, 4.0, 5.0])
    y.square().sum().backward()
    y.grad = torch.ones(3)
    torch.optim.SGD([y], lr=0.1).step()
    layer = nn.Linear(2, 2)
    layer.double()(torch.ones(1, 2, dtype=torch.double))
    layer.to(torch.bfloat16)
    layer.weight.data = torch.zeros(2, 2)
    layer.float()(torch.ones(1, 2)).sum().backward()


@program
def shared_with_numpy() -> None:
    array = np.arange(4.0)
    x = torch.from_numpy(array)
    x.sin()
    array += 1
    x.cos()
    y = torch.ones(3)
    z = y.numpy()
    z[0] = 5
    (y * 2).sum()
    y.add_(1)
    torch.frombuffer(bytearray(16), dtype=torch.float32).exp()
    w = torch.arange(3.0)
    torch.from_dlpack(w).add_(1)
    w.sum()
    torch.asarray(array).sum()
    torch.tensor(array).sum()
    np.asarray(w)[:] = 0
    w.exp()
    torch.as_tensor([1, 2, 3]).sum()


@program
def shared_between_processes() -> None:
    x = torch.ones(4).share_memory_()
    x.add_(1)
    x[1:3].mul_(2)
    x.sum()
    torch.zeros(2).add_(x[:2])


@program
def sparse() -> None:
    i = torch.tensor([[0, 1, 1], [2, 0, 2]])
    s = torch.sparse_coo_tensor(i, torch.tensor([3.0, 4.0, 5.0]), (2, 3))
    t = (s + s).coalesce()
    t.to_dense()
    torch.sparse.mm(t, torch.randn(3, 2))
    (t * 2).values().sum()
    t.transpose(0, 1).coalesce().indices()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        c = torch.randn(3, 4).relu().to_sparse_csr()
        c @ torch.randn(4, 2)
        c.to_sparse_csc().to_dense()
        torch.eye(4).to_sparse_bsr((2, 2)).to_dense()
    d = torch.eye(3).to_sparse().requires_grad_()
    torch.autograd.grad(torch.sparse.sum(d * 2), d)
    s.mul_(2).zero_()
    torch.sparse.softmax(t, 1)
    t.detach().clone().sum()


@program
def quantized() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.randn(3, 4)
        q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
        q.dequantize()
        q.int_repr().sum()
        q.reshape(4, 3).clone()
        scales, points = torch.ones(3) / 10, torch.zeros(3, dtype=torch.long)
        c = torch.quantize_per_channel(x, scales, points, 0, torch.qint8)
        c.dequantize().sum()
        torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
        torch.ops.quantized.add(q, q, 0.2, 0)
        q.q_scale(), q[0].dequantize()
        torch.empty_like(q)


@program
def quantized_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight = torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weight, torch.zeros(3))
        torch.ops.quantized.linear_dynamic(torch.randn(2, 4), packed)
        torch.ops.quantized.linear_unpack(packed)


@program
def nested() -> None:
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    n = torch.nested.nested_tensor(parts, layout=torch.jagged)
    (n * 2).sin().values().sum()
    torch.nn.functional.layer_norm(n, (3,))
    nn.Linear(3, 2)(n).unbind()[0].sum()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        s = torch.nested.nested_tensor(parts)
        (s + s).to_padded_tensor(1.0)
        torch.nested.to_padded_tensor(s.relu(), 0.0)


@program
def complex_numbers() -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    (z.conj() @ z.t()).real.sum()
    z.conj().clone()
    z.conj().resolve_conj().imag.neg()
    torch.view_as_real(z).mul_(2)
    z.mH.contiguous()
    z.conj().copy_(z)
    torch.fft.ifft(torch.fft.fft(torch.randn(8)))
    torch.fft.rfft2(torch.randn(4, 4))
    torch.stft(torch.randn(32), 8, return_complex=True, window=torch.hann_window(8))
    w = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    (w * w).real.sum().backward()
    torch.polar(torch.ones(2), torch.zeros(2)).abs()
    z.angle(), z * 2j, torch._neg_view(z).clone()
    torch.linalg.solve(torch.eye(3, dtype=torch.complex64), z).conj_physical_()


@program
def dtypes() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.bool,
                  torch.int16, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16,
                  torch.uint32):  # fmt: skip
        x = torch.ones(3, 5).to(dtype)
        x.float().to(dtype).t().clone()
        x[1:, ::2].contiguous()
    torch.tensor([True, False]) & torch.tensor(True)
    torch.ones(2, dtype=torch.int64) + torch.ones(2)
    torch.arange(0, 1, 0.25), torch.linspace(0, 1, 5), torch.full((2,), float("nan"))
    torch.tensor(3).item(), torch.tensor(2.5).item(), torch.tensor(1j).item(), bool(torch.tensor(1))
    torch.full((2,), 2**63 - 1), torch.iinfo(torch.int8)
    torch.ones(2).type(torch.DoubleTensor)


@program
def large_tensors() -> None:
    x = torch.randn(128, 300)
    y = x.t() @ x
    (y + y.t()).softmax(-1)[:, ::3].sum()
    x[:, :100].mul_(2)
    x.t().contiguous()


@program
def random_generators() -> None:
    g = torch.Generator().manual_seed(3)
    torch.rand(2, generator=g)
    torch.randperm(5, generator=g)
    torch.multinomial(torch.ones(4), 2, generator=g)
    torch.bernoulli(torch.full((3,), 0.5))
    torch.normal(torch.zeros(2), torch.ones(2))
    torch.poisson(torch.ones(3))
    torch.randint_like(torch.ones(3), 5)
    torch.ones(4).exponential_().geometric_(0.5).cauchy_().log_normal_().random_(7)
    torch.distributions.Beta(2.0, 3.0).sample()
    torch.distributions.Categorical(logits=torch.zeros(3)).sample((4,))
    state = torch.get_rng_state()
    torch.rand(1)
    torch.set_rng_state(state)
    torch.rand(1)
    with torch.random.fork_rng(devices=[]):
        torch.randn(2)
    np.random.rand(2)


@program
def linear_algebra() -> None:
    a = torch.randn(4, 4)
    s = a @ a.t() + 4 * torch.eye(4)
    torch.linalg.cholesky(s), torch.linalg.inv(s), torch.linalg.det(s)
    torch.linalg.eigh(s), torch.linalg.lu_factor(s)
    torch.linalg.matrix_power(a, 3), torch.linalg.vector_norm(a), torch.kron(a[:2], a[:2])
    (
        torch.einsum("ij,jk,kl->il", a, a, a),
        torch.tensordot(a, a),
        torch.baddbmm(a[None], a[None], a[None]),
    )
    torch.linalg.multi_dot([a, a, a]), torch.cdist(a, a), torch.cov(a), torch.trapezoid(a)
    x = a.clone().requires_grad_()
    torch.linalg.solve(x @ x.t() + torch.eye(4), a).sum().backward()
    torch.linalg.slogdet(s.requires_grad_())[1].backward()
    (
        torch.logsumexp(a, 0),
        a.std(),
        torch.var_mean(a),
        a.median(),
        a.mode(),
        a.topk(2),
        a.kthvalue(1),
    )
    (
        a.histc(4),
        torch.bincount(torch.tensor([1, 1, 3])),
        a.unique(),
        torch.bucketize(a, a[0].sort()[0]),
    )
