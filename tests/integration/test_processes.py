"""Threads, forks, other processes and ranks under capture (DESIGN section 3)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import opguard
from captured import Captured, capture, read, run_source
from opguard.fingerprint.tensor import fingerprint
from process_programs import COLLECTIVES, COMPILED, FORKING, STEPS
from program import TIMEOUT, run_program


def mix(tensor: torch.Tensor) -> str:
    return f"{fingerprint(tensor).mix64:016x}"


def test_threads_that_start_under_capture_are_armed(tmp_path: Path) -> None:
    def program() -> None:
        threads = [threading.Thread(target=torch.ones, args=(n,)) for n in (3, 4)]
        for thread in threads:
            thread.start()
            thread.join()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(torch.zeros, (5, 6)))
        torch.full((7,), 1.0)

    captured = capture(tmp_path, program)
    assert sorted(captured.names) == ["full", "ones", "ones", "zeros", "zeros"]
    threads = {event.thread for event in captured.events}
    assert len(threads) in (4, 5)  # the pool may use one thread for both
    assert captured.one("full").thread not in {e.thread for e in captured.all("ones")}
    assert captured.coverage["unarmed_threads"] == 0


def test_a_thread_that_runs_already_is_counted(tmp_path: Path) -> None:
    go = threading.Event()

    def work() -> None:
        go.wait(TIMEOUT)
        torch.ones(3)

    thread = threading.Thread(target=work)
    thread.start()

    def program() -> None:
        go.set()
        thread.join()
        torch.zeros(2)

    # A dispatch mode does not see it; the recorder does, and counts none.
    captured = capture(tmp_path, program, mechanism="dispatch")
    assert captured.names == ["zeros"]
    assert captured.coverage["unarmed_threads"] == 1


def test_backward_in_threads(tmp_path: Path) -> None:
    """Each thread's backward events are its own, and agree with the other run's."""

    def program() -> None:
        def work(seed: int) -> None:
            x = torch.full((3,), float(seed), requires_grad=True)
            (x * x).sin().sum().backward()

        for seed in (1, 2):
            thread = threading.Thread(target=work, args=(seed,))
            thread.start()
            thread.join()

    runs = [capture(tmp_path / name, program) for name in "ab"]
    assert [e.phase for e in runs[0].all("cos")] == ["backward", "backward"]
    assert len({e.thread for e in runs[0].all("cos")}) == 2
    assert opguard.compare(tmp_path / "a", tmp_path / "b").verdict == "identical"


def test_threads_that_interleave_differently_agree(tmp_path: Path) -> None:
    def program(first: int) -> None:
        turn = [threading.Event(), threading.Event()]

        def work(n: int) -> None:
            turn[n].wait(TIMEOUT)
            x = torch.full((4,), float(n + 2))
            for _ in range(3):
                x = x * x
            turn[1 - n].set()

        threads = [threading.Thread(target=work, args=(n,)) for n in (0, 1)]
        for thread in threads:
            thread.start()
        turn[first].set()
        for thread in threads:
            thread.join()

    for first in (0, 1):
        capture(tmp_path / str(first), lambda first=first: program(first))
    result = opguard.compare(tmp_path / "0", tmp_path / "1")
    assert result.verdict == "identical", result.reasons


def test_a_capture_opened_and_closed_while_threads_work(tmp_path: Path) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            x = torch.ones(3, requires_grad=True)
            (x * 2).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for name in "abc":
            captured = capture(tmp_path / name, lambda: torch.ones(2).sin(), mechanism="dispatch")
            assert [n for n in captured.names if n in ("ones", "sin")][-1] == "sin"
            assert captured.coverage["unarmed_threads"] == 2
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_pool_that_nobody_shut_down_ends_with_the_program(tmp_path: Path) -> None:
    source = """
        from concurrent.futures import ThreadPoolExecutor
        import torch
        pool = ThreadPoolExecutor(1)
        pool.submit(torch.ones, 3).result()
        pool.submit(torch.zeros, 4)
    """
    done = run_source(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert read(tmp_path / "run")[0].names == ["ones", "zeros"]


def test_forks_while_other_threads_are_inside_operators(tmp_path: Path) -> None:
    """No deadlock; the children are not captured, work, and are counted once each."""
    done = run_source(tmp_path, FORKING)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[1, 1, 1, 1]\n[12.0, 48.0]\n"
    (rank,) = read(tmp_path / "run")
    assert rank.coverage["uncaptured_processes"] == 6
    assert not rank.header["partial"]
    assert rank.all("sum")[0].inputs["self"]["producers"] == []  # a worker's data is a source
    assert rank.names[-1] == "sin"


def launch(folder: Path, script: Path, store: str, world: int = 2) -> list[str]:
    """All ranks into ``folder``; what each wrote to stderr."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "opguard", "run", "-o", str(folder), str(script), store],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={
                **os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
                "RANK": str(rank), "WORLD_SIZE": str(world),
            },
        )
        for rank in range(world)
    ]  # fmt: skip
    done = [process.communicate(timeout=TIMEOUT) for process in processes]
    assert [process.returncode for process in processes] == [0] * world, done
    return [err for _, err in done]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two gloo ranks that uses every kind of collective."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "s.py"
    script.write_text(textwrap.dedent(COLLECTIVES))
    assert launch(folder / "run", script, str(folder / "store")) == ["", ""]
    return folder / "run"


def collective(rank: Captured, name: str) -> list[tuple[list[str], list[str]]]:
    return [
        (list(event.inputs), list(event.outputs))
        for event in rank.events
        if event.op.startswith(("c10d.", "_c10d_functional")) and event.name == name
    ]


def test_collectives_read_and_write_what_they_do(ranks: Path) -> None:
    zero, one = read(ranks)
    assert [zero.header["rank"], one.header["rank"]] == [0, 1]
    reduced = [
        event.outputs["tensors[0]!"]["mix64"]
        for event in (zero.all("allreduce_")[0], one.all("allreduce_")[0])
    ]
    assert reduced == [mix(torch.full((2,), 3.0))] * 2
    for rank in (zero, one):
        assert collective(rank, "allreduce_") == [(["tensors[0]"], ["tensors[0]!"])] * 2
        gathered = [event for event in rank.events if event.name == "allgather_"]
        assert list(gathered[0].inputs) == ["input_tensors[0]"]  # receive buffers are no inputs
        assert list(gathered[0].outputs) == ["output_tensors[0][0]!", "output_tensors[0][1]!"]
        assert gathered[0].outputs["output_tensors[0][1]!"]["mix64"] == mix(torch.full((2,), 4.0))
        assert collective(rank, "_allgather_base_") == [(["input_tensor"], ["output_tensor!"])]
        assert collective(rank, "_reduce_scatter_base_") == [(["input_tensor"], ["output_tensor!"])]
        assert all(not outputs for _, outputs in collective(rank, "barrier"))
        # Gloo's reduce_scatter copies inside of wait().
        assert rank.coverage["unfingerprinted"] == {}
        scattered = rank.one("_reduce_scatter_base_")
        assert rank.all("copy_")[-1].seq == scattered.seq - 1
        assert rank.one("tan").inputs["self"]["producers"] == [[scattered.seq, "output_tensor!"]]
        assert rank.coverage["foreign_values"] == 0
    assert collective(zero, "send") == [(["tensors[0]"], [])]
    assert collective(one, "recv_") == [([], ["tensors[0]!"])]
    recv = one.one("recv_")
    assert recv.outputs["tensors[0]!"]["mix64"] == mix(torch.tensor([7.0]))
    assert one.one("cos").inputs["self"]["producers"] == [[recv.seq, "tensors[0]!"]]
    assert collective(one, "broadcast_")[0][0] == ["tensors[0]"]  # the root reads
    assert collective(zero, "broadcast_")[0] == ([], ["tensors[0]!"])


def test_a_collective_is_read_where_the_program_waited_for_it(ranks: Path) -> None:
    for rank in read(ranks):
        second = rank.all("allreduce_")[1]
        assert rank.one("neg").seq < second.seq < rank.one("sin").seq
        assert second.outputs["tensors[0]!"]["mix64"] == mix(torch.tensor([6.0, 6.0, 8.0, 8.0]))
        assert rank.one("sin").inputs["self"]["producers"] == [[second.seq, "tensors[0]!"]]


def test_functional_collectives(ranks: Path) -> None:
    for rank in read(ranks):
        event = next(e for e in rank.events if e.op.startswith("_c10d_functional.all_reduce"))
        (slot,) = event.outputs
        assert event.outputs[slot]["mix64"] == mix(torch.full((2,), 6.0))
        product = rank.all("mul")[-1]
        assert product.inputs["self"]["producers"] == [[event.seq, slot]]
        assert "wait_tensor" not in rank.names


def test_a_rank_that_is_missing(ranks: Path, tmp_path: Path) -> None:
    shutil.copytree(ranks, tmp_path / "one")
    shutil.rmtree(tmp_path / "one" / "rank-00001")
    assert opguard.compare(ranks, ranks).verdict == "identical"
    for pair in ((ranks, tmp_path / "one"), (tmp_path / "one", ranks)):
        result = opguard.compare(*pair)
        assert (result.verdict, result.reason_code) == ("uncomparable", "RANKS")
    result = opguard.compare(tmp_path / "one", tmp_path / "one")
    assert (result.verdict, result.reason_code) == ("inconclusive", "UNCAPTURED_RANK")


def test_ranks_that_are_not_known(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text("print('started')")
    for env, code in (
        ({"WORLD_SIZE": "2"}, 6), ({"RANK": "1"}, 6), ({"RANK": "2", "WORLD_SIZE": "2"}, 6),
        ({"RANK": "x", "WORLD_SIZE": "2"}, 6), ({"OMPI_COMM_WORLD_SIZE": "2"}, 6),
    ):  # fmt: skip
        done = run_program(["run", "-o", str(tmp_path / "run"), str(script)], env=env)
        assert (done.returncode, done.stdout) == (code, ""), env
        assert done.stderr.startswith("opguard: error: ")
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_selected_steps_and_early_ends(tmp_path: Path) -> None:
    done = run_source(tmp_path / "a", STEPS, flags=("--steps", "1:3"))
    assert (done.returncode, done.stdout) == (0, "0\n1\n2\n3\n4\n")
    (rank,) = read(tmp_path / "a" / "run")
    assert {event.step for event in rank.events} == {1, 2}
    done = run_source(tmp_path / "b", STEPS, flags=("--stop-after", "2steps"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0\n")
    assert "3" not in done.stdout
    (rank,) = read(tmp_path / "b" / "run")
    assert {event.step for event in rank.events} == {0, 1}
    assert rank.header["close"]["stopped"]
    assert not rank.header["partial"]
    done = run_source(tmp_path / "c", STEPS, flags=("--stop-after", "7events"))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(read(tmp_path / "c" / "run")[0].events) == 7
    shown = run_program(["compare", str(tmp_path / "c" / "run"), str(tmp_path / "c" / "run")])
    assert shown.returncode == 0, shown.stdout


@pytest.mark.parametrize("end", ["", "sys.exit(2)", "os._exit(2)", "raise KeyError"])
def test_the_interpreter_ends_with_a_capture_open(tmp_path: Path, end: str) -> None:
    script = tmp_path / "s.py"
    script.write_text(
        "import os, sys, threading, time, torch, opguard\n"
        f"capture = opguard.capture({str(tmp_path / 'run')!r})\n"
        "capture.__enter__()\n"
        "x = torch.ones(3)\n"
        # The recorder's run is opened by the thread that carries its rows.
        f"while not os.path.exists({str(tmp_path / 'run' / 'rank-00000' / 'open.json')!r}):\n"
        "    time.sleep(0.01)\n"
        "threading.Thread(target=lambda: x.sin(), daemon=True).start()\n"
        f"for _ in range(5000):\n    x = x + 1\n{end}\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == {"": 0, "raise KeyError": 1}.get(end, 2), done.stderr
    assert ("Traceback" in done.stderr) == (end == "raise KeyError")
    (rank,) = read(tmp_path / "run")
    assert rank.header["partial"]
    assert len(rank.all("add")) == 5000 or "_exit" in end


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_compiled_functions_stay_compiled(tmp_path: Path) -> None:
    done = run_source(tmp_path, COMPILED, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 [21.0, 21.0] 27.0\n"
    (rank,) = read(tmp_path / "run")
    calls = [event for event in rank.events if event.op.startswith("compiled.")]
    assert len(calls) == 3
    for call, sin in zip(calls, rank.all("sin"), strict=True):
        assert {record["mix64"] for record in call.inputs.values()} == {
            mix(torch.arange(6.0).reshape(2, 3) + 1), mix(torch.ones(3, 2)),
        }  # fmt: skip
        assert {mix(torch.tensor([21.0, 21.0]))} <= {r["mix64"] for r in call.outputs.values()}
        assert sin.inputs["self"]["producers"][0][0] == call.seq
    assert not [e for e in rank.events if e.name in ("mm", "relu")]
    assert rank.coverage["opaque_regions"] == []
