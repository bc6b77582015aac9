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
import textwrap
from pathlib import Path

import pytest

import captured
import native_programs as programs
from captured import read
from native_support import needs_native

pytestmark = needs_native
SECONDS = 100
"""Far more than any of them takes; a hang is what is looked for."""
TESTS = Path(programs.__file__).parent


def run(source: str, *arguments: object, threads: int = 1) -> subprocess.CompletedProcess[str]:
    """``source`` in a new interpreter."""
    (done,) = run_together([(textwrap.dedent(source), arguments, {"OMP_NUM_THREADS": threads})])
    return done


def run_together(
    started: list[tuple[str, tuple[object, ...], dict[str, object]]], *, flags: tuple[str, ...] = ()
) -> list[subprocess.CompletedProcess[str]]:
    """Programs that run at the same time."""
    processes = []
    for source, arguments, variables in started:
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(TESTS), *filter(None, [environment.get("PYTHONPATH")])]
        )
        script = Path(str(arguments[0])) / "stressed.py"
        script.write_text(source)
        processes.append(
            subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *flags, str(script), *map(str, arguments)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                start_new_session=True,
            )
        )  # fmt: skip
    return [wait(process) for process in processes]


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


def whole(body: str) -> str:
    """A program with what all of them need."""
    return textwrap.dedent(programs.PRELUDE) + textwrap.dedent(body)


@pytest.mark.parametrize(
    "name",
    [
        "THREADS", "BACKWARD", "LOADER", "FINALIZERS", "FORKS", "OPENING", "DEFECTS", "RAISING",
        "LONG_CALLS", "MANY_CAPTURES", "SIGNALS", "DISKS", "OBSERVERS", "WRAPPERS", "THREAD_EXITS",
    ],
)  # fmt: skip
def test_program(name: str, tmp_path: Path) -> None:
    source = whole(getattr(programs, name))
    if name != "LOADER":  # whose spawned workers import it
        source += "\nprint('ok')\n"
    done = run(source, tmp_path, threads=2 if name == "THREADS" else 1)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.endswith("ok\n")
    assert not re.search("Traceback|Fatal|OpguardWarning", done.stderr), done.stderr[-5000:]


def test_ranks_with_hooks(tmp_path: Path) -> None:
    """Reductions overlap the backward pass, whose hooks call operators on several threads."""
    store = tmp_path / "store"
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    done = run_together([
        (
            whole(programs.RANKS), (tmp_path / str(rank), store),
            {"RANK": rank, "WORLD_SIZE": 2, "OMP_NUM_THREADS": 1},
        )
        for rank in range(2)
    ])  # fmt: skip
    for one in done:
        assert one.returncode == 0, one.stderr[-5000:]


@pytest.mark.parametrize("name", ["LEFT_OPEN", "LEFT_OPEN_IN_THREAD"])
def test_the_interpreter_ends_with_a_capture_open(name: str, tmp_path: Path) -> None:
    """Daemon threads call operators meanwhile."""
    done = run(whole(getattr(programs, name)), tmp_path)
    # Without capture, too, torch aborts where daemon threads call operators at this moment.
    aborts = (-signal.SIGABRT, "terminate called without an active exception")
    assert (done.returncode, done.stderr.split("\n")[0]) in ((0, ""), aborts), done.stderr[-5000:]
    if name == "LEFT_OPEN":
        (rank,) = read(tmp_path / "run")
        assert rank.names.count("mul") > 0
        assert rank.header["close"]["interrupted"]


@pytest.mark.parametrize("limit", ["50events", "3steps"])
def test_stop_after(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program swallows the exception that ends it, once."""
    monkeypatch.setattr(captured, "MECHANISM", "native")
    done = captured.run_source(tmp_path, programs.STOPPED, "1", flags=("--stop-after", limit))
    assert (done.returncode, done.stderr) == (0, "")
    (rank,) = read(tmp_path / "run")
    close = rank.header["close"]
    assert close["stopped"] and not close["interrupted"]
    assert close["steps"] == 3 if limit == "3steps" else len(rank.events) == 50
