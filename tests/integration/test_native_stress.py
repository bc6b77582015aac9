"""The recorder in programs that would crash, hang or leak under a careless one.

Each program runs in a process of its own that is aborted, and shows where its threads stand, if it
does not end in time.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import captured
from captured import read
from native_support import needs_native

pytestmark = needs_native
SECONDS = 100
"""Far more than any of them takes; a hang is what is looked for."""
TESTS = Path(__file__).parents[1]
PROGRAMS = TESTS / "stress"


def run(name: str, *arguments: object, threads: int = 1) -> subprocess.CompletedProcess[str]:
    """The program of that name."""
    return wait(start(name, *arguments, OMP_NUM_THREADS=threads))


def start(name: str, *arguments: object, **variables: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", PROGRAMS / f"{name}.py", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={
            **os.environ, **{key: str(value) for key, value in variables.items()},
            "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]),
        },
    )  # fmt: skip


def wait(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Its end; one that hangs is aborted, with the processes that it started."""
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGABRT)
        out, err = "", ""
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"hung\n{out}\n{err}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


ALONE = sorted(
    {path.stem for path in PROGRAMS.glob("*.py")}
    - {"left_open", "left_open_in_thread", "ranks", "stopped", "support"}
)


@pytest.mark.parametrize("name", ALONE)
def test_program(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path, threads=2 if name == "threads" else 1)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.endswith("ok\n")
    assert not re.search("Fatal|OpguardWarning", done.stderr), done.stderr[-5000:]


def test_ranks_with_hooks(tmp_path: Path) -> None:
    """Reductions overlap the backward pass, whose hooks call operators on several threads."""
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    processes = [
        start(
            "ranks", tmp_path / str(rank), tmp_path / "store",
            RANK=rank, WORLD_SIZE=2, OMP_NUM_THREADS=1,
        )
        for rank in range(2)
    ]  # fmt: skip
    done = [wait(process) for process in processes]
    for one in done:
        assert one.returncode == 0, one.stderr[-5000:]


@pytest.mark.parametrize("name", ["left_open", "left_open_in_thread"])
def test_the_interpreter_ends_with_a_capture_open(name: str, tmp_path: Path) -> None:
    """Daemon threads call operators meanwhile."""
    done = run(name, tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-5000:]
    if name == "left_open":
        (rank,) = read(tmp_path / "run")
        assert rank.names.count("mul") > 0
        assert rank.header["close"]["interrupted"]


@pytest.mark.parametrize("limit", ["50events", "3steps"])
def test_stop_after(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program swallows the exception that ends it, once."""
    monkeypatch.setattr(captured, "MECHANISM", "native")
    done = captured.run_source(
        tmp_path, (PROGRAMS / "stopped.py").read_text(), "1", flags=("--stop-after", limit)
    )
    assert (done.returncode, done.stderr) == (0, "")
    (rank,) = read(tmp_path / "run")
    close = rank.header["close"]
    assert close["stopped"]
    assert not close["interrupted"]
    assert close["steps"] == 3 if limit == "3steps" else len(rank.events) == 50
