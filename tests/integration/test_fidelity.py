"""Capture leaves what a program computes alone, on PyTorch's own samples."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import torch

from captured import capture

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "fidelity.py"


def test_capture_changes_what_its_mechanism_changes_and_nothing_else(
    tmp_path: Path, mechanism: str
) -> None:
    found = tmp_path / "found.json"
    what = ["--mechanism", mechanism, "--ops", "add,prod,empty,linalg.eig"]
    command = [sys.executable, BENCHMARK, "--json", found, *what]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    float32 = json.loads(found.read_text())["float32"]
    assert float32["operators"] == 4
    assert float32["events"] > float32["samples"]
    assert not float32["faults"]
    assert not float32["stopped"]
    assert set(float32["unrepeatable"]) == {"empty"}
    if mechanism == "native":
        assert not float32["deviations"]
    else:
        # What the mode itself changes is found, so that faults of capture would be.
        assert set(float32["deviations"]) == {"prod", "linalg.eig"}
        assert set(float32["deviations"]["linalg.eig"]) == {"function.raised"}


def test_reading_a_compressed_sparse_tensor_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matrix = torch.eye(3).to_sparse_csr()
    torch.set_warn_always(True)
    try:
        event = capture(tmp_path, lambda: matrix @ torch.ones(3)).one("mv")
    finally:
        torch.set_warn_always(False)
    assert {"self.crow_indices", "self.col_indices", "self.values"} <= set(event.inputs)


def test_noise_that_rrelu_leaves_unset_is_no_output(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 8)
    event = capture(tmp_path, lambda: torch.rrelu(x, training=False)).one("rrelu_with_noise")
    assert set(event.outputs) == {"0"}


def test_noise_that_rrelu_draws_is_an_output_and_no_input(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 8)
    event = capture(tmp_path, lambda: torch.rrelu(x, training=True)).one("rrelu_with_noise")
    assert set(event.outputs) == {"0", "noise!"}
    assert event.outputs["noise!"]["mix64"] is not None
    assert "noise" not in event.inputs


def test_what_a_copy_takes_from_void_memory_stays_void(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.empty(2, 4)
        x[:, :2] = 1.0
        y = torch.empty(3, 4)
        y.copy_(x[:1])
        y[:, :2].sin()
        y[:, 1:].cos()
        y[:, 2:].fill_(2.0)
        y.tan()

    run = capture(tmp_path, program)
    assert run.one("copy_").outputs["self!"]["void"]
    assert "void" not in run.one("sin").inputs["self"]
    assert run.one("cos").inputs["self"]["void"]
    assert "void" not in run.one("tan").inputs["self"]


def test_circular_padding_is_compared(tmp_path: Path) -> None:
    """It copies corners before it fills them."""
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    run = capture(
        tmp_path,
        lambda: torch.nn.functional.pad(image, (1, 1, 1, 1), mode="circular").sin(),
    )
    assert any("void" in event.outputs["self!"] for event in run.all("copy_"))
    assert "void" not in run.one("sin").inputs["self"]
