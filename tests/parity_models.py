"""Short programs that train: layers, optimizers, and what stands around a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody calls it)
from torch import nn

from native_support import RELEASE

PROGRAMS: dict[str, Callable[[], Any]] = {}
"""By name: what a parity test runs under each mechanism."""


def program(run: Callable[[], Any]) -> Callable[[], Any]:
    """Add ``run`` to ``PROGRAMS``."""
    PROGRAMS[run.__name__] = run
    return run


def train(model: nn.Module, *inputs: Any, steps: int = 2, loss: Any = None) -> None:
    """Two steps of SGD on the mean square of what the model returns."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        result = model(*inputs)
        first = result[0] if isinstance(result, tuple) else result
        (first.square().mean() if loss is None else loss(first)).backward()
        optimizer.step()


@program
def lstm() -> None:
    train(nn.LSTM(5, 4, num_layers=2, bidirectional=True, dropout=0.3), torch.randn(6, 3, 5))


@program
def lstm_packed() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(5, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, [4, 2, 1], batch_first=True)
            out, _ = self.rnn(packed)
            return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]

    train(Model(), torch.randn(3, 4, 5))


@program
def gru() -> None:
    train(nn.GRU(5, 4, num_layers=2), torch.randn(6, 3, 5))


@program
def gru_cell() -> None:
    cell = nn.GRUCell(3, 4)
    h = torch.zeros(2, 4)
    for _ in range(3):
        h = cell(torch.randn(2, 3), h)
    h.sum().backward()


@program
def convolutions() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.ConvTranspose2d(4, 2, 2), nn.GroupNorm(1, 2), nn.SiLU(), nn.AvgPool2d(2),
        nn.Conv2d(2, 2, 1, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    x = torch.randn(4, 3, 8, 8)
    train(model, x)
    model.eval()
    with torch.no_grad():
        model(x)
    with torch.inference_mode():
        model(x)
    train(model, x.to(memory_format=torch.channels_last))


@program
def conv1d_and_3d() -> None:
    train(nn.Conv1d(2, 3, 3, padding_mode="circular"), torch.randn(2, 2, 7))
    train(nn.Conv3d(1, 2, 2), torch.randn(1, 1, 3, 3, 3))


@program
def batch_norms() -> None:
    for layer in (nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=None),
                  nn.BatchNorm1d(3, track_running_stats=False), nn.InstanceNorm1d(3, affine=True),
                  nn.SyncBatchNorm(3)):  # fmt: skip
        x = torch.randn(4, 3, 5)
        train(layer, x)
        layer.eval()
        layer(x)


@program
def embeddings() -> None:
    tokens = torch.tensor([[0, 2, 2], [1, 4, 0]])
    train(nn.Embedding(5, 3, padding_idx=0, max_norm=1.0, scale_grad_by_freq=True), tokens)
    train(nn.EmbeddingBag(5, 3, mode="mean"), tokens)


@program
def sparse_gradients() -> None:
    tokens = torch.tensor([[0, 2, 2], [1, 4, 0]])
    for layer in (nn.Embedding(5, 3, sparse=True), nn.EmbeddingBag(5, 3, mode="sum", sparse=True)):
        optimizer = torch.optim.SparseAdam(list(layer.parameters()), lr=0.1)
        for _ in range(2):
            (gradient,) = torch.autograd.grad(layer(tokens).square().sum(), layer.weight)
            layer.weight.grad = gradient.coalesce()
            optimizer.step()


@program
def attention() -> None:
    x = torch.randn(2, 4, 8)
    layer = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    train(lambda_module(lambda: layer(x, x, x, attn_mask=mask), layer))
    train(lambda_module(lambda: layer(x, x, x, need_weights=False), layer))
    layer.eval()
    with torch.no_grad():
        layer(x, x, x)


@program
def transformer() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    x = torch.randn(2, 4, 8)
    train(model, x)
    model.eval()
    with torch.inference_mode():
        model(x, src_key_padding_mask=torch.tensor([[False] * 4, [False, False, True, True]]))


@program
def decoder() -> None:
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    train(layer, torch.randn(2, 4, 8), torch.randn(2, 3, 8))


class Called(nn.Module):
    """Calls a function, as a module with the parameters of another one."""

    def __init__(self, call: Callable[[], Any], inner: nn.Module) -> None:
        super().__init__()
        self.call, self.inner = call, inner

    def forward(self) -> Any:
        """Its result."""
        return self.call()


def lambda_module(call: Callable[[], Any], inner: nn.Module) -> nn.Module:
    return Called(call, inner)


@program
def dropouts() -> None:
    x = torch.randn(2, 3, 4, 4)
    for layer in (nn.Dropout(0.4), nn.Dropout(0.4, inplace=True), nn.Dropout2d(), nn.AlphaDropout(),
                  nn.FeatureAlphaDropout(), nn.RReLU(), nn.Dropout(0.0), nn.Dropout(1.0)):  # fmt: skip
        y = (x * 1).requires_grad_()
        layer(y * 2).sum().backward()
        layer.eval()
        layer(y * 2)
    F.gumbel_softmax(x.requires_grad_(), hard=True).sum().backward()


@program
def losses() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    y = torch.randn(4, 5)
    labels = torch.tensor([0, 4, 2, -100])
    for loss in (
        F.cross_entropy(x, labels, label_smoothing=0.1), F.cross_entropy(x, y.softmax(1)),
        F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y),
        F.binary_cross_entropy_with_logits(x, y.sigmoid()), F.kl_div(x.log_softmax(1), y.softmax(1),
        reduction="batchmean"), F.cosine_embedding_loss(x, y, torch.ones(4)),
        F.triplet_margin_loss(x, y, y + 1), F.gaussian_nll_loss(x, y, torch.ones(4, 5)),
        F.multi_margin_loss(x, labels.clamp(min=0)), F.nll_loss(x.log_softmax(1), labels),
        F.poisson_nll_loss(x, y.abs()), F.soft_margin_loss(x, y.sign()), F.hinge_embedding_loss(x, y.sign()),
    ):  # fmt: skip
        loss.backward()


@program
def activations() -> None:
    x = torch.randn(3, 6, requires_grad=True)
    for layer in (nn.GELU(), nn.GELU(approximate="tanh"), nn.ELU(), nn.CELU(), nn.SELU(), nn.GLU(),
                  nn.Hardtanh(), nn.Hardswish(), nn.Mish(), nn.PReLU(), nn.Softplus(), nn.Softshrink(),
                  nn.Softsign(), nn.Tanhshrink(), nn.Threshold(0.1, 2.0), nn.LogSigmoid(),
                  nn.Softmax(dim=-1), nn.LogSoftmax(dim=-1), nn.Softmin(dim=0), nn.LeakyReLU(),
                  nn.ReLU6(), nn.Hardsigmoid()):  # fmt: skip
        layer(x).sum().backward()


@program
def norms() -> None:
    x = torch.randn(2, 4, 6)
    for layer in (nn.LayerNorm(6), nn.LayerNorm(6, elementwise_affine=False), nn.RMSNorm(6),
                  nn.GroupNorm(2, 4), nn.LocalResponseNorm(2), nn.CrossMapLRN2d(2)):  # fmt: skip
        if RELEASE == (2, 11) and isinstance(layer, nn.RMSNorm):
            continue  # which it takes apart under a mode
        y = x.clone().requires_grad_()
        if isinstance(layer, nn.CrossMapLRN2d):
            layer(y.unsqueeze(0)).sum().backward()
        else:
            layer(y).square().sum().backward()
    train(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), x)
    train(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)), x)


@program
def resampling() -> None:
    x = torch.randn(1, 2, 4, 4, requires_grad=True)
    F.interpolate(x, scale_factor=2, mode="bilinear").sum().backward()
    F.interpolate(x, size=3, mode="nearest").sum().backward()
    F.interpolate(x, scale_factor=2.0, mode="bicubic", antialias=True).sum().backward()
    F.grid_sample(
        x, torch.rand(1, 3, 3, 2, requires_grad=True) - 0.5, align_corners=False
    ).sum().backward()
    F.pixel_shuffle(x.repeat(1, 2, 1, 1), 2).sum().backward()
    F.unfold(x, 2).sum().backward()
    F.fold(F.unfold(x, 2), 4, 2).sum().backward()
    F.pad(x, (1, 1, 1, 1), mode="reflect").sum().backward()
    F.pad(x, (1, 1, 1, 1), mode="circular").sum().backward()
    F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2).sum().backward()
