"""Short programs that train: optimizers, and what stands around a step."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody calls it)
from torch import nn
from torch.utils.checkpoint import checkpoint

from native_support import OLDEST
from parity_models import PROGRAMS, program


def optimizers() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in ("SGD", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam",
                 "RMSprop", "Rprop", "Adafactor"):  # fmt: skip
        if not hasattr(torch.optim, name):
            continue
        for foreach in (False, True):
            made[f"{name}-{'foreach' if foreach else 'loop'}"] = (name, {"foreach": foreach})
    made["SGD-nesterov"] = ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1})
    made["Adam-amsgrad"] = ("Adam", {"amsgrad": True, "weight_decay": 0.1})
    made["Adam-maximize"] = ("Adam", {"maximize": True, "foreach": True})
    made["Adam-fused"] = ("Adam", {"fused": True})
    made["AdamW-fused"] = ("AdamW", {"fused": True})
    made["SGD-fused"] = ("SGD", {"fused": True, "momentum": 0.9})
    made["Adagrad-fused"] = ("Adagrad", {"fused": True})
    made["RMSprop-centered"] = ("RMSprop", {"centered": True, "momentum": 0.9})
    made["Adam-capturable-lr"] = ("Adam", {"lr": torch.tensor(0.01), "foreach": False})
    return made


OPTIMIZERS = optimizers()


def optimize(name: str) -> None:
    """Three steps of one optimizer."""
    kind, options = OPTIMIZERS[name]
    options = {key: v.clone() if isinstance(v, torch.Tensor) else v for key, v in options.items()}
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    optimizer = getattr(torch.optim, kind)(model.parameters(), **{"lr": 0.01, **options})
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        schedule.step()


for _name in OPTIMIZERS:
    PROGRAMS[_name] = lambda name=_name: optimize(name)


@program
def lbfgs() -> None:
    model = nn.Linear(4, 2)
    x, y = torch.randn(6, 4), torch.randn(6, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure)


@program
def muon() -> None:
    if not hasattr(torch.optim, "Muon"):
        return
    model = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.Muon(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()


@program
def accumulation_and_clipping() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        for _ in range(3):
            (model(torch.randn(3, 4)).mean() / 3).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=bool(step))
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()


@program
def grad_scaler() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(torch.randn(3, 4)).float(), torch.randn(3, 2))
        scaler.scale(loss * (float("inf") if step == 1 else 1.0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@program
def autocast() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            F.cross_entropy(model(torch.randn(3, 4)), torch.tensor([0, 1, 0])).backward()
        with torch.autocast("cpu", enabled=False):
            model(torch.randn(3, 4))
        F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 4, 8))
        torch.randn(2, 3) @ torch.randn(3, 2)
        torch.einsum("ij,jk->ik", torch.randn(2, 3), torch.randn(3, 2))


@program
def moving_average() -> None:
    model = nn.Linear(4, 2)
    average = copy.deepcopy(model)
    swa = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        swa.update_parameters(model)
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        kept = [p.data for p in model.parameters()]
        for p, slow in zip(model.parameters(), average.parameters(), strict=True):
            p.data = slow.data
        model(torch.randn(3, 4))
        for p, data in zip(model.parameters(), kept, strict=True):
            p.data = data
    model.load_state_dict(average.state_dict())
    model(torch.randn(3, 4))


@program
def checkpoints() -> None:
    model = nn.ModuleList(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.ReLU()) for _ in range(3)
    )
    x = torch.randn(2, 4, requires_grad=True)
    for reentrant in (False, True):
        h = x
        for layer in model:
            h = checkpoint(layer, h, use_reentrant=reentrant)
        h.sum().backward()
    h = torch.utils.checkpoint.checkpoint_sequential(
        nn.Sequential(*model), 2, x, use_reentrant=False
    )
    h.sum().backward()


@program
def selective_checkpoint() -> None:
    if OLDEST:
        return
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        keep = op is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    x = torch.randn(3, 3, requires_grad=True)
    checkpoint(
        lambda v: (v @ v).sin().exp(), x, use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    ).sum().backward()  # fmt: skip


@program
def tied_and_frozen() -> None:
    embedding, head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
    head.weight = embedding.weight
    frozen = nn.Linear(4, 4).requires_grad_(False)
    parameters = list(embedding.parameters())
    optimizer = torch.optim.Adam(parameters)
    for _ in range(2):
        optimizer.zero_grad()
        h = frozen(embedding(torch.tensor([1, 2, 5])))
        F.cross_entropy(head(h), torch.tensor([2, 5, 0])).backward()
        optimizer.step()


@program
def penalty() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(5, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (gradient.norm(dim=1) - 1).square().mean().backward()


@program
def initialisation() -> None:
    w = torch.empty(4, 6)
    for fill in (nn.init.xavier_uniform_, nn.init.kaiming_normal_, nn.init.orthogonal_,
                 nn.init.trunc_normal_, nn.init.eye_, nn.init.ones_, nn.init.normal_):  # fmt: skip
        fill(w)
    nn.init.sparse_(w, 0.5)
    nn.init.dirac_(torch.empty(2, 2, 3))
    with torch.device("cpu"):
        nn.Linear(2, 2)
    layer = nn.Linear(2, 2, device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    lazy = nn.LazyLinear(3)
    lazy(torch.randn(2, 5)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy.deepcopy(layer)
