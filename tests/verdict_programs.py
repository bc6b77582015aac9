"""Small training programs, and edits that do or do not change what they compute."""

from __future__ import annotations

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


AFTER = "    return model, loss"


STEP = "        opt.step()\n"


LOOP = "    for i in range(3):\n"


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
    "dropout seeded otherwise": [(LOOP, "    torch.rand(1)\n" + LOOP)],
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
    "gradient kept": [("opt.zero_grad()\n", "opt.zero_grad() if i != 1 else None\n")],
    "only the last gradient zeroed": [(AFTER, "    model.first.bias.grad.zero_()\n" + AFTER)],
    "parameters of one layer frozen": [
        ("    batches =", "    model.second.bias.requires_grad_(False)\n    batches =")
    ],
    "one NaN": [(AFTER, "    model.second.bias.data[0] = float('nan')\n" + AFTER)],
    "dropout unseeded": [(LOOP, "    torch.seed()\n" + LOOP)],
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


EQUAL = {
    "run again": [("import ctypes", "import  ctypes")],
    "comment above the model": [("class Net", "# A comment.\n\nclass Net")],
    "renamed variables": [
        ("def forward(self, x):", "def forward(self, inputs):"),
        ("self.body(x)", "self.body(inputs)"),
        ("hidden = self", "mid = self"), ("lerp_(hidden", "lerp_(mid"),
        ("self.second(hidden)", "self.second(mid)"),
    ],
    "renamed functions": [
        ("def body", "def trunk"), ("self.body", "self.trunk"),
    ],
    "extra logging": [
        (STEP, "        print('loss', loss.item(), model.first.weight.grad.norm().item())\n" + STEP)
    ],
    "extra logging at the end": [
        (AFTER, "    print(loss.item(), float(model.mean.max()))\n" + AFTER)
    ],
    "checks with a number": [(STEP, "        assert not torch.isnan(loss).any()\n" + STEP)],
    "checkpoint": [("self.body(x)", "checkpoint(self.body, x, use_reentrant=False)")],
    "reentrant checkpoint": [
        ("self.body(x)", "checkpoint(self.body, x.requires_grad_(), use_reentrant=True)")
    ],
    "another thread at work": [
        (LOOP,
         "    def work():\n        for _ in range(50):\n            torch.ones(3).add(1).sum()\n"
         "    thread = threading.Thread(target=work)\n    thread.start()\n" + LOOP),
        # Joined in the loop: what a thread still does after it would be a trailing gap.
        (STEP, "        thread.join()\n" + STEP),
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
