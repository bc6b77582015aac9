"""The writer and the life of its process: forks, kills, and the end of the interpreter."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from builders import Gate, many_chunks, open_writer, pending, some_chunks
from opguard.store.run_reader import load_run
from opguard.store.run_writer import QUEUE_LENGTH

TESTS = Path(__file__).parents[1]


# From 3.12 on Python warns about every fork of a process with threads; that is the case here.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_inert_and_leaves_the_parents_files_alone(tmp_path):
    chunks = list(pending(some_chunks(3)))
    gate = Gate(chunks[0])
    writer = open_writer(tmp_path)
    writer.submit(gate)
    assert gate.building.wait(10)
    child = os.fork()
    if child == 0:
        try:
            writer.disarm_after_fork()
            for chunk in chunks * QUEUE_LENGTH:
                writer.submit(chunk)
            writer.close({"by": "child"})
            writer.abandon()
        except BaseException:  # noqa: BLE001  (the child must end here)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "rank-00000" / "chunks.jsonl").read_bytes() == b""
    gate.open.set()
    for chunk in chunks[1:]:
        writer.submit(chunk)
    writer.close({"by": "parent"})
    rank = load_run(tmp_path).ranks[0]
    assert (rank.event_count, rank.closing["by"]) == (9, "parent")


def run_program(body, folder, **options):
    program = (
        "import os, sys\n"
        "from builders import many_chunks, open_writer, pending\n"
        f"writer = open_writer(sys.argv[1])\n{body}"
    )
    environ = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", program, str(folder)], env=environ, **options)


def test_what_was_published_survives_sigkill(tmp_path):
    body = (
        "for chunk in pending(many_chunks(10**9, size=100)):\n"
        "    writer.submit(chunk)\n"
        "    print(writer.events_written, flush=True)\n"
    )
    for published in (500, 2000, 5000):
        folder = tmp_path / str(published)
        with run_program(body, folder, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if int(line) >= published:
                    break
            process.kill()
            told = [int(line) for line in process.stdout if line.endswith("\n")]
        assert process.returncode == -signal.SIGKILL
        rank = load_run(folder).ranks[0]
        assert rank.partial
        assert rank.event_count >= max([published, *told])
        expected = np.concatenate(
            [c.records["mix64"] for c in many_chunks(rank.event_count, size=100)]
        )
        np.testing.assert_array_equal(rank.mix64, expected)


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(0)",
        "import atexit; atexit.register(writer.close, {})",
        # Late finalizers run when the thread is already frozen: nothing may wait for it.
        "class Late:\n    def __del__(self): writer.close({}); writer.submit(None)\nlate = Late()\n"
        "sys.late = late\n",
        "import warnings; warnings.simplefilter('ignore')\n"
        "os.fork() or writer.disarm_after_fork(); writer.close({})",
    ],
)
def test_the_interpreter_ends_without_hanging(tmp_path, end):
    body = f"for chunk in pending(many_chunks(300, size=100)):\n    writer.submit(chunk)\n{end}"
    process = run_program(body, tmp_path, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, b"")
    rank = load_run(tmp_path).ranks[0]
    assert rank.event_count <= 300
    if "close, {}" in end or "fork" in end:
        assert (rank.event_count, rank.partial) == (300, False)
