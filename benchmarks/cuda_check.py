"""Does the pure-Python engine work on a CUDA device? Prints what it finds; exits 1 on a mismatch.

    python benchmarks/cuda_check.py

Needs a CUDA device. Fingerprints of CUDA tensors are compared with the numpy reference over
dtypes, lengths and strides; a small training is captured twice on the device, in both modes, and
once with a planted fault; losses with and without capture are compared.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import opguard
from opguard.fingerprint import spec
from opguard.fingerprint.tensor import fingerprint

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int16, torch.uint8, torch.bool, torch.complex64)  # fmt: skip


def check_fingerprints() -> int:
    """Number of tensors whose fingerprint differs from the reference's."""
    torch.manual_seed(0)
    wrong = checked = 0
    for dtype in DTYPES:
        for length in (0, 1, 3, 7, 8, 9, 64, 1000, 8191, 65536, 1_000_003):
            data = torch.randint(0, 2 if dtype is torch.bool else 100, (length, 2)).to(dtype)
            for view in (data, data[:, 0], data.t(), data[length // 2 :]):
                raw = torch.empty(view.numel(), dtype=dtype).copy_(view.reshape(-1))
                raw = raw.view(torch.uint8).numpy()
                device_view = data.cuda().as_strided(
                    view.shape, view.stride(), view.storage_offset()
                )
                found = fingerprint(device_view)
                expected = spec.digest(raw)
                checked += 1
                if (found.mix64, found.xor32) != expected:
                    wrong += 1
                    print("differs:", dtype, tuple(view.shape), view.stride())
    print(f"fingerprints: {checked} CUDA tensors, {wrong} differ from the reference")
    return wrong


def train(eps: float = 1e-5, steps: int = 3) -> list[str]:
    """Losses of a small training on the device, by bits."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.LayerNorm(128, eps=eps), nn.GELU(), nn.Dropout(0.1),
        nn.Linear(128, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(steps):
        x = torch.randn(32, 64, device="cuda")
        loss = nn.functional.cross_entropy(model(x), torch.arange(32, device="cuda") % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def check_capture(folder: Path) -> int:
    """Number of wrong verdicts and changed losses."""
    wrong = 0
    plain = train()
    for mode in ("trusted", "full"):
        for name, eps in (("a", 1e-5), ("b", 1e-5), ("bug", 1e-6)):
            with opguard.capture(folder / f"{mode}-{name}", mode=mode):
                losses = train(eps)
            if name != "bug" and losses != plain:
                wrong += 1
                print("capture changed the losses", losses, plain)
        same = opguard.compare(folder / f"{mode}-a", folder / f"{mode}-b")
        bug = opguard.compare(folder / f"{mode}-a", folder / f"{mode}-bug")
        pivot = bug.pivot.op if bug.pivot else None
        print(f"{mode}: equal runs {same.verdict} {same.reason_code}; "
              f"planted eps {bug.verdict} at {pivot}")  # fmt: skip
        wrong += same.verdict != "identical" or pivot != "aten.native_layer_norm.default"
    return wrong


def main() -> int:
    """Run all checks."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, "
          f"python {platform.python_version()}, numpy {np.__version__}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        wrong = check_fingerprints() + check_capture(Path(folder))
    print("all right" if not wrong else f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
