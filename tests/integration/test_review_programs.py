"""Programs that a review or a stranger found broken under capture."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import opguard
from captured import capture, read, run_source
from native_support import OLDEST
from program import run_program


def test_a_child_that_reaches_its_end_leaves_the_run_to_its_parent(tmp_path: Path) -> None:
    source = """
        import os, sys, torch
        torch.ones(2).sin()
        child = os.fork()
        if child == 0:
            sys.exit(3)
        _, status = os.waitpid(child, 0)
        torch.ones(2).cos()
        print("child", os.waitstatus_to_exitcode(status))
    """
    done = run_source(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "child 3\n", "")
    (rank,) = read(tmp_path / "run")
    assert not rank.header["partial"]
    assert rank.names == ["ones", "sin", "ones", "cos"]


def test_force_on_a_folder_without_a_run_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    done = run_source(tmp_path, "print('started')", flags=["--force"])
    assert done.returncode == 2
    assert done.stdout == ""
    assert "holds no run" in done.stderr
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_compiled_module_runs_as_without_capture(tmp_path: Path, mechanism: str) -> None:
    if OLDEST and mechanism == "dispatch":
        pytest.skip("torch 2.4 compiles twice under any mode")
    source = """
        import warnings
        warnings.filterwarnings("error", message=".*global hooks.*")
        import torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        compiled = torch.compile(model)
        for _ in range(2):
            compiled(torch.ones(2, 4)).sum().backward()
        import torch._dynamo.utils as utils
        print(utils.counters["stats"]["unique_graphs"], dict(utils.counters["graph_break"]))
    """
    done = run_source(tmp_path, source)
    assert (done.returncode, done.stdout) == (0, "1 {}\n"), done.stderr
    (rank,) = read(tmp_path / "run")
    compiled = [event for event in rank.events if event.op == "compiled.inductor"]
    assert [event.phase for event in compiled] == ["forward", "backward"] * 2
    assert {event.module for event in compiled} == {"Sequential"}


@pytest.mark.mechanism("dispatch", reason="the recorder sees what is traced")
def test_tracing_works_and_is_an_opaque_region(tmp_path: Path) -> None:
    results = []

    def program() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            traced = torch.jit.trace(lambda x: x.relu() + 1, torch.ones(3))
            results.append(traced(torch.ones(3)))

    captured = capture(tmp_path, program)
    assert torch.equal(results[0], torch.full((3,), 2.0))
    assert captured.coverage["opaque_regions"] == ["torch.jit.trace"]


def test_what_signal_handlers_raise_reaches_the_program(tmp_path: Path) -> None:
    class TickError(Exception):
        """Raised by the handler."""

    def handler(_number: int, _frame: object) -> None:
        raise TickError

    x, ticks = torch.ones(4), 0
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with opguard.capture(tmp_path / "run"):
            for _ in range(20):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.002)
                    while True:
                        x + 1
                except TickError:
                    ticks += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ticks == 20
    (rank,) = read(tmp_path / "run")
    assert len(rank.events) > 20


@dataclass
class Unhashable(nn.Module):
    """A module as ``dataclass`` makes it."""

    size: int = 2

    def __post_init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(self.size, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Picky(nn.Module):
    """Its attribute look-up raises what nobody expects."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("_checkpoint"):
            raise KeyError(name)
        return super().__getattr__(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def test_modules_of_any_make(tmp_path: Path) -> None:
    def program() -> None:
        Unhashable()(torch.ones(1, 2))
        Picky()(torch.ones(2))

    captured = capture(tmp_path, program)
    assert captured.one("addmm").module == "Unhashable.layer"
    assert captured.one("sin").module == "Picky"


def test_modules_made_in_many_threads(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(150):
                nn.Linear(1, 1)(torch.ones(1, 1))
        except Exception as error:  # noqa: BLE001  (whatever it is, it must not be)
            failed.append(error)

    def program() -> None:
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    captured = capture(tmp_path, program)
    assert failed == []
    assert len(captured.all("addmm")) == 900


def test_models_that_refer_to_themselves_are_let_go(tmp_path: Path) -> None:
    alive: list[weakref.ref[nn.Module]] = []

    class Cyclic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)
            self.call = self.body

        def body(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.call(x)

    def program() -> None:
        for _ in range(1500):
            model = Cyclic()
            model(torch.ones(1, 1))
            alive.append(weakref.ref(model))
        gc.collect()
        assert sum(model() is not None for model in alive) < 1400

    capture(tmp_path, program)


def test_a_finished_thread_is_freed_at_once(tmp_path: Path) -> None:
    def program() -> None:
        thread = threading.Thread(target=lambda: torch.ones(1))
        thread.start()
        thread.join()
        reference = weakref.ref(thread)
        gc.disable()
        try:
            del thread
            assert reference() is None
        finally:
            gc.enable()

    capture(tmp_path, program)


def test_lists_in_the_optimizers_state_are_read(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))

    def program() -> None:
        optimizer = torch.optim.LBFGS([weight], max_iter=4, history_size=3)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (weight**4).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    names = {event.module for event in capture(tmp_path, program).state}
    assert {"LBFGS.params[0].old_dirs[0]", "LBFGS.param_groups[0].lr"} <= names


def test_seeded_generators_are_named(tmp_path: Path) -> None:
    import random

    def program() -> None:
        random.seed()
        torch.manual_seed(1)

    assert capture(tmp_path, program).header["close"]["seeded"] == ["rng.torch.cpu"]


def test_the_same_seed_ends_in_another_state(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import random, sys, torch
            random.seed(0)
            torch.ones(2).sin()
            if len(sys.argv) > 1:
                random.random()
        """)
    )
    for folder, extra in (("a", []), ("b", ["more"])):
        run_program(["run", "-o", str(tmp_path / folder), str(script), *extra])
    result = opguard.compare(tmp_path / "a", tmp_path / "b")
    assert (result.verdict, result.reason_code) == ("diverged", "STATE")
    assert opguard.compare(tmp_path / "a", tmp_path / "a").verdict == "identical"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors through /proc")
def test_captures_leave_no_descriptors_and_folders_behind(tmp_path: Path) -> None:
    capture(tmp_path / "first", lambda: torch.ones(1))
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        capture(tmp_path / str(number), lambda: torch.ones(1))
    assert len(os.listdir("/proc/self/fd")) == before
    code = "import torch; torch.ones(1)"
    script = tmp_path / "s.py"
    script.write_text(code)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "opguard", "run", "-o", str(tmp_path / "run"), str(script)],
        env={**os.environ, "TMPDIR": str(temporary)}, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert list(temporary.iterdir()) == []


def test_a_timer_of_the_program_that_is_armed_at_its_end(tmp_path: Path) -> None:
    """Its handler raises while the run is being closed: the program has ended, with its code."""
    source = """
        import signal, sys, torch
        class Alarm(Exception): pass
        def handler(*_): raise Alarm
        signal.signal(signal.SIGALRM, handler)
        x = torch.ones(8)
        for _ in range(3000):
            x = x + 1
        print("done")
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        sys.exit(5)
    """
    done = run_source(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (5, "done\n", "")
    (rank,) = read(tmp_path / "run")
    assert not rank.header["partial"]
    assert rank.names.count("add") == 3000


def test_a_timer_that_fires_while_threads_are_joined(tmp_path: Path) -> None:
    """As in Python: what its handler raises is printed, and the exit code stays."""
    source = """
        import signal, sys, threading, time, torch
        class Alarm(Exception): pass
        def handler(*_): raise Alarm
        signal.signal(signal.SIGALRM, handler)
        torch.ones(3)
        threading.Thread(target=time.sleep, args=(1.2,)).start()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        sys.exit(5)
    """
    done = run_source(tmp_path, source)
    assert done.returncode == 5
    assert "Exception ignored in" in done.stderr
    assert "internal error" not in done.stderr
    (rank,) = read(tmp_path / "run")
    assert not rank.header["partial"]
