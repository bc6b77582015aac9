"""The verdict on pairs of small training programs that differ in one thing (DESIGN section 6)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import opguard
from opguard.policy import Policy
from opguard.report.result import Result
from program import TIMEOUT, run_program

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples" / "train_gpt" / "train.py"

TRAIN = """\
import ctypes, random, threading, numpy, torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.25)
        self.register_buffer("mean", torch.zeros(8))

    def body(self, x):
        return self.drop(torch.tanh(self.first(x)))

    def forward(self, x):
        hidden = self.body(x)
        with torch.no_grad():
            self.mean.lerp_(hidden.mean(0), 0.1)
        return self.second(hidden)

def main():
    torch.manual_seed(3)
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = [torch.randn(4, 6) for _ in range(3)]
    targets = [torch.randn(4, 3) for _ in range(3)]
    for i in range(3):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(batches[i]), targets[i])
        loss.backward()
        opt.step()
    return model, loss

model, loss = main()
"""


def edited(*edits: tuple[str, str], text: str = TRAIN) -> str:
    """The program with each (old, new) replaced; every old stands in it exactly once."""
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def execute(script: Path, text: str) -> None:
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text)
    exec(compile(text, str(script), "exec"), {"__name__": "__main__"})


def run(folder: Path, text: str, script: str = "train.py") -> Path:
    """Run a program in this process under capture; returns the run's folder."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(0)
    with opguard.capture(folder / "run"):
        execute(folder / script, text)
    return folder / "run"


Comparer = Callable[..., Result]


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Comparer:
    """``compare(candidate)`` or ``compare(baseline, candidate)``, each text run once."""
    runs: dict[str, Path] = {}

    def run_once(text: str) -> Path:
        if text not in runs:
            runs[text] = run(tmp_path_factory.mktemp("run"), text)
        return runs[text]

    def compared(*texts: str) -> Result:
        baseline, candidate = (TRAIN, *texts)[-2:]
        return opguard.compare(run_once(baseline), run_once(candidate))

    return compared


AFTER = "    return model, loss"
STEP = "        opt.step()\n"
DIFFERENT = {
    "AdamW fused": [("lr=0.01", "lr=0.01, fused=True")],
    "AdamW foreach": [("lr=0.01", "lr=0.01, foreach=True")],
    "forgotten last step": [(STEP, "        if i < 2:\n            opt.step()\n")],
    "stray mul_": [(AFTER, "    model.first.weight.data.mul_(0.9)\n" + AFTER)],
    "stray mul_ under no_grad": [
        (AFTER, "    with torch.no_grad():\n        model.second.weight.mul_(0.9)\n" + AFTER)
    ],
    "numpy write at the end": [(AFTER, "    model.first.weight.detach().numpy()[:] = 0\n" + AFTER)],
    "raw write at the end": [
        (AFTER, "    ctypes.memset(model.second.bias.data_ptr(), 0, 4)\n" + AFTER)
    ],
    "raw write to a gradient": [
        (STEP, "        ctypes.memset(model.first.weight.grad.data_ptr(), 1, 1)\n" + STEP)
    ],
    "numpy write to a gradient": [
        (STEP, "        model.second.bias.grad.numpy()[0] += 1\n" + STEP)
    ],
    "3 steps against 10": [
        ("range(3):\n        opt", "range(10):\n        opt"),
        ("batches[i]", "batches[i % 3]"), ("targets[i]", "targets[i % 3]"),
    ],
    "another seed": [("manual_seed(3)", "manual_seed(4)")],
    "dropout seeded otherwise": [("    for i in range(3):\n", "    torch.rand(1)\n    for i in range(3):\n")],
    "another batch order": [
        ("batches[i]", "batches[2 - i]"), ("targets[i]", "targets[2 - i]"),
    ],
    "only a buffer": [(AFTER, "    model.mean.add_(1)\n" + AFTER)],
    "only a buffer, from the start": [("zeros(8)", "ones(8)")],
    "another learning rate": [("lr=0.01", "lr=0.0100001")],
    "learning rate of the last step": [
        (STEP, "        opt.param_groups[0]['lr'] = 0.01 if i < 2 else 0.02\n" + STEP)
    ],
    "weight decay left out": [("lr=0.01", "lr=0.01, weight_decay=0.0")],
    "gradient kept": [("        opt.zero_grad()\n", "        opt.zero_grad() if i != 1 else None\n")],
    "only the last gradient zeroed": [(AFTER, "    model.first.bias.grad.zero_()\n" + AFTER)],
    "parameters of one layer frozen": [
        ("    batches =", "    model.second.bias.requires_grad_(False)\n    batches =")
    ],
    "one NaN": [(AFTER, "    model.second.bias.data[0] = float('nan')\n" + AFTER)],
    "dropout unseeded": [("    for i in range(3):\n", "    torch.seed()\n    for i in range(3):\n")],
    "data unseeded": [("    torch.manual_seed(3)\n", "    torch.seed()\n")],
    "generator moved at the end": [(AFTER, "    torch.rand(3)\n" + AFTER)],
    "python generator moved": [(AFTER, "    random.random()\n" + AFTER)],
    "optimizer state written": [
        (AFTER, "    opt.state[model.first.bias]['exp_avg'].zero_()\n" + AFTER)
    ],
    "optimizer step count written": [
        (AFTER, "    opt.state[model.first.bias]['step'].numpy()[...] = 0\n" + AFTER)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_never_identical(compare: Comparer, name: str) -> None:
    changed = edited(*DIFFERENT[name])
    for pair in ((TRAIN, changed), (changed, TRAIN)):
        result = compare(*pair)
        assert result.verdict in ("diverged", "inconclusive"), (name, result.reasons)


ONE_STEP = edited(("range(3):\n        opt", "range(1):\n        opt"))
COPIES = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(4))

    def forward(self, x):
        self.kept.copy_(x)
        self.kept.copy_(x + 1)
        return x * 2

Net()(torch.arange(4.0))
"""
PAIRS = {
    "one step, AdamW fused": (ONE_STEP, edited(("lr=0.01", "lr=0.01, fused=True"), text=ONE_STEP)),
    "one step, AdamW foreach": (
        ONE_STEP, edited(("lr=0.01", "lr=0.01, foreach=True"), text=ONE_STEP),
    ),
    "copies in the other order": (
        COPIES,
        edited(
            ("        self.kept.copy_(x)\n", ""),
            ("copy_(x + 1)\n", "copy_(x + 1)\n        self.kept.copy_(x)\n"),
            text=COPIES,
        ),
    ),
    "zero against negative zero": (
        edited((AFTER, "    model.mean.fill_(0.0)\n" + AFTER)),
        edited((AFTER, "    model.mean.fill_(-0.0)\n" + AFTER)),
    ),
    "NaN payloads": tuple(
        edited((AFTER, f"    model.mean.view(torch.int32)[0] = 0x7FC0000{n}\n" + AFTER))
        for n in (1, 2)
    ),
    "nothing against something": ("import torch\n", TRAIN),
    "nothing against nothing else": ("import torch\n", "import torch\n\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_these_pairs_are_never_identical(compare: Comparer, name: str) -> None:
    for pair in (PAIRS[name], PAIRS[name][::-1]):
        result = compare(*pair)
        assert result.verdict in ("diverged", "inconclusive"), (name, result.reasons)


EQUAL = {
    "run again": [("import ctypes", "import  ctypes")],
    "comment above the model": [("class Net", "# A comment.\n\nclass Net")],
    "renamed variables": [
        ("def forward(self, x):", "def forward(self, inputs):"), ("self.body(x)", "self.body(inputs)"),
        ("hidden = self", "mid = self"), ("lerp_(hidden", "lerp_(mid"),
        ("self.second(hidden)", "self.second(mid)"),
    ],
    "renamed functions": [
        ("def body", "def trunk"), ("self.body", "self.trunk"),
    ],
    "extra logging": [
        (STEP, "        print('loss', loss.item(), model.first.weight.grad.norm().item())\n" + STEP)
    ],
    "extra logging at the end": [(AFTER, "    print(loss.item(), float(model.mean.max()))\n" + AFTER)],
    "checks with a number": [(STEP, "        assert not torch.isnan(loss).any()\n" + STEP)],
    "checkpoint": [("self.body(x)", "checkpoint(self.body, x, use_reentrant=False)")],
    "reentrant checkpoint": [
        ("self.body(x)", "checkpoint(self.body, x.requires_grad_(), use_reentrant=True)")
    ],
    "another thread at work": [
        ("    for i in range(3):\n",
         "    def work():\n        for _ in range(50):\n            torch.ones(3).add(1).sum()\n"
         "    thread = threading.Thread(target=work)\n    thread.start()\n    for i in range(3):\n"),
        (AFTER, "    thread.join()\n" + AFTER),
    ],
    "an extra module without parameters": [
        (STEP, "        nn.Sequential(nn.Tanh(), nn.Softmax(-1))(batches[i]).sum().item()\n" + STEP)
    ],
    "in an inner function": [
        ("model, loss = main()", "def outer():\n    return main()\n\nmodel, loss = outer()"),
    ],
    "set_to_none left at its default": [("opt.zero_grad()", "opt.zero_grad(set_to_none=True)")],
    "a list instead of a generator": [("model.parameters()", "list(model.parameters())")],
    "an extra clone nobody uses": [(STEP, "        loss.detach().clone()\n" + STEP)],
    "the state dict saved": [
        (AFTER, "    import io\n    torch.save(model.state_dict(), io.BytesIO())\n" + AFTER)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_identical(compare: Comparer, name: str) -> None:
    changed = edited(*EQUAL[name])
    for pair in ((TRAIN, changed), (changed, TRAIN)):
        result = compare(*pair)
        assert result.verdict == "identical", (name, result.reasons, result.pivot)


def test_parameters_of_one_side_only_are_all_that_an_extra_module_leaves(tmp_path: Path) -> None:
    """GIVEN a second model that is evaluated and changes nothing THEN only its state is open."""
    extra = edited(
        ("def main", "PROBE = nn.Linear(6, 2)\n\ndef main"),
        (STEP, "        with torch.no_grad():\n            PROBE(batches[i])\n" + STEP),
    )
    runs = run(tmp_path / "a", TRAIN), run(tmp_path / "b", extra)
    for pair in (runs, runs[::-1]):
        result = opguard.compare(*pair)
        assert (result.verdict, result.reasons) == ("inconclusive", ("UNPAIRED_STATE",))
        allowed = opguard.compare(*pair, policy=Policy(allow_unpaired_state=True))
        assert allowed.verdict == "identical"


TOWERS = {
    "modules": """\
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        a = self.left(x).tanh()
        b = self.right(x).tanh()
        return a - b

torch.manual_seed(1)
model = Two()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(2):
    opt.zero_grad()
    model(torch.arange(8.0).reshape(2, 4) + i).sum().backward()
    opt.step()
""",
    "functions": """\
import torch

def tower(x, weight):
    return (x @ weight).tanh().sum(0)

torch.manual_seed(1)
x = torch.randn(3, 4)
left, right = torch.randn(4, 4), torch.randn(4, 4)
for i in range(3):
    a = tower(x, left)
    b = tower(x, right)
    (a - b).sum().item()
""",
}
SWAPS = {
    "modules": "        a = self.left(x).tanh()\n        b = self.right(x).tanh()\n",
    "functions": "    a = tower(x, left)\n    b = tower(x, right)\n",
}


@pytest.mark.parametrize("kind", TOWERS)
def test_towers_in_the_other_order(compare: Comparer, kind: str) -> None:
    first, second = SWAPS[kind].splitlines(keepends=True)
    swapped = edited((SWAPS[kind], second + first), text=TOWERS[kind])
    assert compare(TOWERS[kind], swapped).verdict == "identical"
    assert compare(swapped, TOWERS[kind]).verdict == "identical"


LOADING = """\
import os, random, sys
import numpy
random.shuffle(list(range(9)))
numpy.random.rand(2)
import torch
from torch.utils.data import DataLoader, TensorDataset

class Net(torch.nn.Linear):
    pass

def train():
    torch.manual_seed(5)
    data = TensorDataset(torch.randn(24, 4), torch.randn(24, 2))
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2)
    model = Net(4, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in loader:
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        opt.step()
        for name in {"weight", "bias", "a", "b", "c"}:
            len(name)
    print(model.weight.sum().item().hex(), torch.get_rng_state().sum().item())

if __name__ == "__main__":
    train()
"""


def test_what_two_processes_may_have_different(tmp_path: Path) -> None:
    """Another folder, file name, working directory, hash seed and entropy; two workers each."""
    printed = []
    for name, seed in (("one/a.py", "1"), ("two/deep/b.py", "2")):
        script = tmp_path / name
        script.parent.mkdir(parents=True)
        script.write_text(LOADING)
        where = script.parent if seed == "1" else tmp_path
        done = run_program(
            ["run", "-o", str(tmp_path / seed), os.path.relpath(script, where)],
            cwd=where, env={"PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    done = run_program(["compare", str(tmp_path / "1"), str(tmp_path / "2"), "--json"])
    result = json.loads(done.stdout)
    assert (result["verdict"], done.returncode) == ("identical", 0), result["reasons"]
    assert result["counts"]["paired"] == result["counts"]["agreeing"] > 100
    assert result["coverage"]["uncaptured_processes"] == 4


def test_a_killed_run_without_a_pivot_is_inconclusive(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(textwrap.dedent("""\
        import sys, time, torch
        x = torch.arange(4.0)
        for i in range(5000):
            x = x * 0.5 + 1
        print("ready", flush=True)
        if len(sys.argv) > 1:
            time.sleep(60)
    """))
    assert run_program(["run", "-o", str(tmp_path / "whole"), str(script)]).returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "opguard", "run", "-o", str(tmp_path / "cut"), str(script), "wait"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lines = tmp_path / "cut" / "rank-00000" / "chunks.jsonl"
        end = time.monotonic() + TIMEOUT
        while not lines.read_bytes() and time.monotonic() < end:
            time.sleep(0.01)
        process.kill()
    done = run_program(["compare", str(tmp_path / "whole"), str(tmp_path / "cut"), "--json"])
    result = json.loads(done.stdout)
    assert (result["verdict"], done.returncode) == ("inconclusive", 4)
    assert result["reasons"][0] == "PARTIAL"
    assert result["pivot"] is None
    assert result["counts"]["agreeing"] > 1000
    assert "partial" in result["reason"]


RANKS = """\
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=rank, world_size=2)
torch.manual_seed(rank)
dist.barrier()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(3):
    opt.zero_grad()
    loss = model(torch.randn(3, 4)).sum()
    loss.backward()
    opt.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    dist.barrier()
    print(total.item().hex())
dist.barrier()
dist.destroy_process_group()
"""


def run_ranks(folder: Path, text: str, name: str) -> list[str]:
    """Two ranks into ``folder/name``; what each printed."""
    script = folder / "ranks.py"
    script.write_text(text)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "opguard", "run", "-o", str(folder / name), str(script)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={
                **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": "2",
                "MEET": str(folder / f"{name}.store"),
            },
        )
        for rank in range(2)
    ]  # fmt: skip
    done = [process.communicate(timeout=TIMEOUT) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], done
    return [out for out, _ in done]


def test_two_healthy_ranks_twice(tmp_path: Path) -> None:
    printed = [run_ranks(tmp_path, RANKS, name) for name in ("a", "b")]
    assert printed[0] == printed[1]
    done = run_program(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    result = json.loads(done.stdout)
    assert (result["verdict"], done.returncode) == ("identical", 0), result["reasons"]
    assert [rank["verdict"] for rank in result["ranks"]] == ["identical", "identical"]
    assert result["coverage"]["unfingerprinted"] == {}


FIDELITY = """\
import contextlib, ctypes, glob, hashlib, io, json, os, random, sys, traceback, warnings
import numpy, torch, opguard
from torch.optim import optimizer as optimizers

def digest(tensor):
    storage = tensor.untyped_storage()
    return hashlib.sha256(ctypes.string_at(storage.data_ptr(), storage.nbytes())).hexdigest()

def stepped(optimizer, *_):
    for group in optimizer.param_groups:
        for p in group["params"]:
            print(digest(p), None if p.grad is None else digest(p.grad))

def play(path, variant, folder):
    optimizers.register_optimizer_step_post_hook(stepped)
    sys.argv = [path, variant]
    with opguard.capture(folder) if folder else contextlib.nullcontext():
        exec(compile(open(path).read(), path, "exec"), {"__name__": "__main__"})
        torch_state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
        print(torch_state, random.getstate(), numpy.random.get_state()[1].sum())

def forked(path, variant, folder):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(write, 1)
        try:
            random.seed(1), numpy.random.seed(1)
            play(path, variant, folder)
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    text = open(read).read()
    os.waitpid(child, 0)
    return text

found = {}
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*", "case.py"))):
    for variant in ("reference", "suspect"):
        name = os.path.basename(os.path.dirname(path)) + "-" + variant
        found[name] = [forked(path, variant, f) for f in (None, os.path.join(sys.argv[2], name))]
json.dump(found, sys.stderr)
"""


def test_capture_changes_no_bit_of_any_case(tmp_path: Path) -> None:
    """Losses, and parameters, gradients at every step, and the random states at the end."""
    script = tmp_path / "fidelity.py"
    script.write_text(FIDELITY)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(TESTS / "cases"), str(tmp_path / "runs")],
        capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found = json.loads(done.stderr)
    assert len(found) == 24
    for name, (plain, captured) in found.items():
        assert "Traceback" not in plain, plain
        assert captured == plain, name
        assert (tmp_path / "runs" / name / "rank-00000" / "close.json").exists()


def test_capture_changes_no_bit_of_the_example(tmp_path: Path) -> None:
    arguments = [str(EXAMPLE), "--steps", "2", "--width", "32"]
    plain = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    captured = run_program(["run", "-o", str(tmp_path / "run"), *arguments])
    assert plain.stdout.count("loss") == 2
    assert (captured.stdout, captured.stderr, captured.returncode) == (plain.stdout, "", 0)
