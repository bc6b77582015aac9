"""The comparison of the mechanisms itself: each row of its table is real, and it sees all else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import opguard
from captured import unseen
from native_support import OLDEST, RELEASE, needs_native
from parity import DEVIATIONS, IN_PLACE, Parity
from parity_runs import MECHANISMS, both, captured

pytestmark = needs_native


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


@torch.library.custom_op("opguard_table::twice", mutates_args=(), schema="(Tensor x) -> Tensor")
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_autograd(lambda _, gradient: gradient * 2)


def gradients_meet() -> None:
    x = leaf(3)
    (x.sin() * x.cos()).sum().backward()


def saved_before_it_is_overwritten() -> None:
    x = leaf(3).exp() + 1
    (x.clamp_min_(2) * leaf(3).neg()).sum().backward()


def checkpoint_stops() -> None:
    x = leaf(2, 2)
    checkpoint(lambda v: (v @ v).relu(), x, use_reentrant=False).sum().backward()


def refused() -> None:
    with pytest.raises(RuntimeError):
        leaf(1).add_(1)


def view_written() -> None:
    x = torch.zeros(2, 3)
    x[0] = leaf(3)
    x.exp().sum().backward()


def tangents() -> None:
    with forward_ad.dual_level():
        forward_ad.make_dual(torch.ones(3), torch.ones(3)).sin()


def masked() -> None:
    chosen = torch.tensor([True, False])
    torch.zeros(2).masked_fill(chosen, leaf()).sum().backward()


def cond() -> None:
    torch._dynamo.reset()
    torch.cond(torch.ones(3).sum() > 2, lambda v: v.sin(), lambda v: v.cos(), (torch.ones(3),))


def sparse_gradient() -> None:
    layer = nn.Embedding(4, 2, sparse=True)
    layer(torch.tensor([1, 2])).square().sum().backward()
    layer.weight.grad = None


def topk() -> None:
    leaf(4).topk(2)[0].sum().backward()


LATER = (sparse_gradient, topk)
"""In torch 2.4 these take one path."""
EXAMPLES: list[tuple[str, Callable[[], Any]]] = [
    ("in place", gradients_meet),
    ("clone", saved_before_it_is_overwritten),
    ("clone", sparse_gradient),
    ("clone", lambda: torch.ones(2, dtype=torch.complex64).conj().mul(2j)),
    ("stopped", checkpoint_stops),
    ("stopped", refused),
    ("frames", lambda: twice(leaf(2))),
    ("next call", view_written),
    ("prod", lambda: leaf(3).prod().backward()),
    ("max and median of all elements", lambda: leaf(3).max().backward()),
    ("max and median of all elements", lambda: leaf(3).median().backward()),
    ("values of max, sort, topk and their like", topk),
    ("index", lambda: leaf(3)[torch.tensor([0, 1])].sum().backward()),
    ("masked_fill", masked),
    ("zero tensors", lambda: torch.func.hessian(lambda v: v.pow(2).sum())(torch.ones(2))),
    ("tangents", tangents),
    ("checks of tangents", tangents),
    ("conj", lambda: torch.ones(2, dtype=torch.complex64).conj().mul_(2j)),
    ("cond", cond),
]


def test_the_table_is_that_of_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deviations.md").read_text()
    _, _, table = text.partition("| Row |")
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:] if line.startswith("|")]
    names = {deviation.name for deviation in DEVIATIONS}
    assert len(names) == 15
    assert {name for name in names if any(name in row for row in rows)} == names
    assert len(rows) == len(names) - 1  # tangents and their checks share one


@pytest.mark.parametrize(("name", "run"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_a_row_of_the_table_is_real(tmp_path: Path, name: str, run: Callable[[], Any]) -> None:
    parity = both(tmp_path, run)
    assert parity.differences == []
    if run is topk and RELEASE < (2, 12):  # `zeros` for a mode, too
        name = IN_PLACE.name
    if not (OLDEST and run in LATER):
        assert name in {row.name for row in parity.used}


def test_each_row_has_its_example() -> None:
    assert {name for name, _ in EXAMPLES} == {row.name for row in DEVIATIONS}


class Outer(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.children():
            x = child(x)
        return x


def step_now(number: int) -> None:
    opguard.step(number)
    torch.ones(2).sin()


PLANTED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "events": (lambda: torch.ones(2).sin(), lambda: torch.ones(2).cos()),
    "mix64": (lambda: torch.tensor([1.0]).sin(), lambda: torch.tensor([2.0]).sin()),
    "shape": (lambda: torch.zeros(2, 3).sin(), lambda: torch.zeros(3, 2).sin()),
    "strides": (lambda: torch.zeros(2, 2).sin(), lambda: torch.zeros(2, 2).t().sin()),
    "dtype": (lambda: torch.zeros(2), lambda: torch.zeros(2, dtype=torch.int32)),
    "arguments": (lambda: torch.ones(2).sum(0), lambda: torch.ones(2).sum(-1)),
    "module": (lambda: Outer("a")(torch.ones(2)), lambda: Outer("b")(torch.ones(2))),
    "step": (lambda: step_now(0), lambda: step_now(3)),
}


@pytest.mark.parametrize("what", PLANTED)
def test_another_program_is_told_apart(tmp_path: Path, what: str) -> None:
    native, dispatch = PLANTED[what]
    parity = Parity(
        captured(tmp_path / "native", "native", native),
        captured(tmp_path / "dispatch", "dispatch", dispatch),
    )
    assert any(f"{what}: native" in difference for difference in parity.differences)


def test_another_producer_is_told_apart(tmp_path: Path) -> None:
    def program(first: bool) -> None:
        x, y = torch.ones(2), torch.ones(2)
        (x if first else y).sin()

    parity = Parity(
        *(captured(tmp_path / n, n, partial(program, n == "native")) for n in MECHANISMS)
    )
    (difference,) = parity.differences
    assert "self producers: native (0,), dispatch (1,)" in difference


def test_another_final_state_is_told_apart(tmp_path: Path) -> None:
    def program(value: float) -> None:
        layer = nn.Linear(1, 1)
        layer(torch.zeros(1, 1))
        with unseen():
            layer.bias.fill_(value)

    with torch.no_grad():
        runs = [captured(tmp_path / n, n, partial(program, len(n))) for n in MECHANISMS]
    parity = Parity(*runs)
    assert {difference.split()[1] for difference in parity.differences} == {"opguard.state"}
