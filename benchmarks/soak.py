"""Captures many events in one process and fails unless memory stays flat.

    python benchmarks/soak.py [--events 10000000] [--mechanism native|dispatch] [--output DIR]

The program trains on two threads at once, with sequences of changing length, random numbers, views,
written lists, numbers and places that are ever other ones, operators that raise, and tensors that
come and go. Resident memory is read each time another 2 % of the events are stored. It is flat when
the highest reading of the second half is at most 16 MiB above the highest between 10 % and 50 %.
Over 10 million events that is less than four bytes an event.

The run is written in full, about 100 bytes an event, and removed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import nn

from opguard.capture.session import CaptureSession, Ending
from opguard.settings import CaptureSettings

MARKS = 50
GROWTH_LIMIT = 16 << 20
PAGE = 4096


class Net(nn.Module):
    """A little of what training does, in operators of a few microseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.norm = nn.LayerNorm(16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits, (batch, length, 32), of token numbers, (batch, length)."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = hidden + nn.functional.dropout(layer(self.norm(hidden)).relu(), 0.1)
        first, second = hidden.chunk(2, dim=-1)
        return self.head(torch.cat([second, first], dim=-1))


def train(stop: threading.Event) -> None:
    """Train until told to stop."""
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=True)
    buffer, samples, cache = torch.zeros(64), torch.zeros(1_000_003), torch.zeros(2, 5000)
    number = 0
    while not stop.is_set():
        number += 1
        tokens = torch.randint(0, 32, (2, 2 + number % 15))
        loss = nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        buffer[number % 64] = loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        with contextlib.suppress(RuntimeError):
            buffer.view(7, 9)
        torch._foreach_mul_([torch.ones(3), torch.empty(5)], [2.0, 1.0 / number])
        samples[number % 1_000_000 :][:3].sum()
        cache[:, number % 5000] = 1.0
        cache.sum()


def stored_events(run: Path, done: dict[str, int]) -> int:
    """Events in the chunks that are on disk; ``done`` keeps where the last call stopped."""
    index = run / "rank-00000" / "chunks.jsonl"
    if index.exists():
        with index.open() as lines:
            lines.seek(done["offset"])
            for line in iter(lines.readline, ""):
                if line.endswith("\n"):
                    done["events"] += json.loads(line)["events"]
                    done["offset"] += len(line)
    return done["events"]


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def soak(events: int, mechanism: str, run: Path) -> list[int]:
    """Resident memory each time another 2 % of ``events`` were stored."""
    settings = CaptureSettings(output=run, mechanism=mechanism)  # type: ignore[arg-type]
    session = CaptureSession(settings, sys.argv, lambda text: sys.exit(f"soak: {text}"))
    stop = threading.Event()
    threads = [threading.Thread(target=train, args=(stop,)) for _ in range(2)]
    session.start()
    started = time.monotonic()
    for thread in threads:
        thread.start()
    marks: list[int] = []
    done = {"events": 0, "offset": 0}
    try:
        while len(marks) < MARKS and all(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            stored = stored_events(run, done)
            while len(marks) < MARKS and stored * MARKS >= events * (len(marks) + 1):
                marks.append(resident())
                if len(marks) % 5 == 0:
                    seconds = time.monotonic() - started
                    print(
                        f"{stored:>12,} events  {seconds:8.0f} s  {marks[-1] / 2**20:8.1f} MiB",
                        flush=True,
                    )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        session.stop(Ending())
    return marks


def main() -> int:
    """0 where memory stayed flat."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--mechanism", choices=("native", "dispatch"), default="native")
    parser.add_argument("--output", type=Path, help="a folder with room; default: a temporary one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{arguments.mechanism}, torch {torch.__version__}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(dir=arguments.output) as folder:
        marks = soak(arguments.events, arguments.mechanism, Path(folder, "run"))
    if len(marks) < MARKS:
        print("a thread of the program ended early")
        return 1
    early, late = max(marks[MARKS // 10 : MARKS // 2]), max(marks[MARKS // 2 :])
    print(
        f"most memory: {early / 2**20:.1f} MiB from 10 % to 50 % of the events, "
        f"{late / 2**20:.1f} MiB after"
    )
    flat = late - early <= GROWTH_LIMIT
    print("flat" if flat else f"grew by {(late - early) / 2**20:.1f} MiB")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
