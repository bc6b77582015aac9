"""Train a small GPT on the text of Python's own documentation, byte by byte.

    python train.py
    python train.py --steps 20 --bug ln-eps

Every step prints its loss, also as float.hex: two runs are equal only if those texts are.
--bug plants one of three faults that are hard to find by looking at losses:

    ln-eps    one LayerNorm of four blocks has another epsilon
    grad-bit  one bit of one gradient is flipped at step 3, by a write that PyTorch never sees
    loss-sum  micro-batches add up sums of losses where means are meant
"""

import argparse
import ctypes
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 256
TEXT_BYTES = 200_000
GRAD_BIT_STEP = 3


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, eps=1e-5):
        super().__init__()
        self.ln1 = nn.LayerNorm(width, eps=eps)
        self.attention = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, width=128, layers=4, heads=4, context=64, wrong_eps=False):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, eps=1e-6 if wrong_eps and layer == 2 else 1e-5)
            for layer in range(layers)
        )
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def load_text():
    """The topics of help() as bytes, sorted by name."""
    text = "\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(text.encode()[:TEXT_BYTES]), dtype=torch.uint8).long()


def next_batch(text, batch, context, generator):
    """Random stretches of the text, and the same stretches one byte later."""
    starts = torch.randint(len(text) - context - 1, (batch,), generator=generator)
    inputs = torch.stack([text[start : start + context] for start in starts])
    targets = torch.stack([text[start + 1 : start + context + 1] for start in starts])
    return inputs, targets


def flip_one_bit(tensor):
    """Change one mantissa bit of the first element, behind PyTorch's back."""
    third_byte = ctypes.c_uint8.from_address(tensor.data_ptr() + 2)
    third_byte.value ^= 0x40


def train_step(model, optimizer, micro_batches, reduction="mean", before_clip=None):
    """One optimizer step over several micro-batches; returns the mean loss as a number."""
    total = 0.0
    optimizer.zero_grad()
    for inputs, targets in micro_batches:
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
        loss = loss / len(micro_batches)
        loss.backward()
        total += loss.item()
    if before_clip is not None:
        before_clip(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4, help="sequences in a micro-batch")
    parser.add_argument("--context", type=int, default=64, help="bytes in a sequence")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches in a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bug", choices=("none", "ln-eps", "grad-bit", "loss-sum"), default="none")
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    sampler = torch.Generator().manual_seed(args.seed)
    text = load_text()
    model = GPT(args.width, context=args.context, wrong_eps=args.bug == "ln-eps")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(args.steps):
        micro_batches = [
            next_batch(text, args.batch, args.context, sampler) for _ in range(args.accumulate)
        ]
        flip = args.bug == "grad-bit" and step == GRAD_BIT_STEP
        loss = train_step(
            model,
            optimizer,
            micro_batches,
            reduction="sum" if args.bug == "loss-sum" else "mean",
            before_clip=(lambda m: flip_one_bit(m.head.weight.grad)) if flip else None,
        )
        print(f"step {step} loss {loss:.6f} {loss.hex()}", flush=True)


if __name__ == "__main__":
    main()
