"""The writer thread: order, back pressure, faults, forks and kills."""

import errno
import json
import os
import threading
import time

import numpy as np
import pytest

from builders import (
    BuiltChunk,
    EventBuilder,
    Gate,
    Record,
    many_chunks,
    open_writer,
    pending,
    some_chunks,
    write_run,
)
from opguard.errors import CaptureError
from opguard.model import Chunk
from opguard.store import files, rank_files, run_writer
from opguard.store.run_reader import load_run
from opguard.store.run_writer import QUEUE_LENGTH


def rank_files_of(folder):
    return sorted(os.listdir(folder / "rank-00000"))


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_what_a_closed_rank_holds(tmp_path):
    write_run(tmp_path, some_chunks(2), summary={"exit_code": 0})
    assert rank_files_of(tmp_path) == [
        "chunk-000000.npz", "chunk-000001.npz", "chunks.jsonl", "close.json", "open.json",
        "strings.jsonl",
    ]  # fmt: skip
    lines = (tmp_path / "rank-00000" / "chunks.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert len(lines) == 2
    assert (first["chunk"], first["events"], first["records"], first["strings"]) == (0, 3, 6, 12)
    with np.load(tmp_path / "rank-00000" / "chunk-000001.npz", allow_pickle=False) as columns:
        assert columns["mix64"].tolist() == [3, 4, 4, 5, 5, 6]
        assert columns["producers"].tolist() == [5, 7, 9]
    closing = json.loads((tmp_path / "rank-00000" / "close.json").read_text())
    assert closing["exit_code"] == 0
    assert closing["written"].items() >= {"events": 6, "records": 12, "chunks": 2}.items()


def test_equal_chunks_make_equal_files(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, some_chunks(1))
    a, b = (tmp_path / n / "rank-00000" / "chunk-000000.npz" for n in "ab")
    assert a.read_bytes() == b.read_bytes()


def test_a_record_takes_at_most_48_bytes(tmp_path):
    write_run(tmp_path, many_chunks(20_000))
    rank = load_run(tmp_path).ranks[0]
    stored = sum(p.stat().st_size for p in tmp_path.glob("rank-*/chunk-*.npz"))
    assert rank.record_count == 54_000
    assert stored / rank.record_count <= 48


def test_abandon_leaves_a_partial_run(tmp_path):
    write_run(tmp_path, some_chunks(2), summary=None)
    rank = load_run(tmp_path).ranks[0]
    assert rank.partial
    assert rank.event_count == 6
    assert rank.problems == ()


def test_chunks_are_published_in_the_order_of_their_events(tmp_path):
    writer = open_writer(tmp_path)
    first, second, third = pending(some_chunks(3))
    for chunk in (third, second, first):
        writer.submit(chunk)
    writer.close({})
    assert writer.failed is None
    assert writer.events_written == 9
    assert load_run(tmp_path).ranks[0].mix64[::2].tolist() == list(range(9))


def test_events_that_never_arrive_leave_the_run_partial(tmp_path):
    writer = open_writer(tmp_path)
    first, _, third = pending(some_chunks(3))
    writer.submit(first)
    writer.submit(third)
    writer.close({})
    assert isinstance(writer.failed, CaptureError)
    assert "events 3 to 5 never" in str(writer.failed)
    assert writer.lost_events == 3
    assert load_run(tmp_path).ranks[0].partial


@pytest.mark.parametrize("again", [0, 3])
def test_an_event_that_arrives_twice_is_never_written_twice(tmp_path, again):
    first, second, _ = pending(some_chunks(3))
    writer = open_writer(tmp_path)
    for chunk in (first, second, BuiltChunk(second.chunk, again)):
        writer.submit(chunk)
    writer.close({})
    assert f"event {again} was handed to the writer twice" in str(writer.failed)
    assert writer.lost_events == 3
    assert load_run(tmp_path).ranks[0].event_count == 6


def test_a_chunk_of_nothing_leaves_no_file(tmp_path):
    (chunk,) = some_chunks(1)
    nothing = Chunk(
        events={name: values[:0] for name, values in chunk.events.items()},
        records={name: values[:0] for name, values in chunk.records.items()},
        producers=chunk.producers[:0],
        region_records=chunk.region_records,
        region_values=chunk.region_values,
        strings=(),
    )
    write_run(tmp_path, [nothing, chunk, nothing])
    assert [n for n in rank_files_of(tmp_path) if "npz" in n] == ["chunk-000000.npz"]


def test_the_idle_hook_may_need_a_lock_that_the_submitting_thread_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(run_writer, "IDLE_SECONDS", 0.01)
    lock, asked = threading.Lock(), threading.Event()

    def idle():
        asked.set()
        with lock:
            return

    with lock:
        writer = open_writer(tmp_path, idle=idle)
        assert asked.wait(10)
        for chunk in pending(some_chunks(QUEUE_LENGTH + 3)):
            writer.submit(chunk)
    writer.close({})
    assert writer.failed is None
    assert writer.events_written == 3 * (QUEUE_LENGTH + 3)


def test_what_waits_is_written_when_nothing_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(run_writer, "IDLE_SECONDS", 0.01)
    waiting = list(pending(some_chunks(2)))
    writer = open_writer(tmp_path, idle=lambda: waiting.pop(0) if waiting else None)
    wait_until(lambda: writer.events_written == 6)
    assert load_run(tmp_path).ranks[0].event_count == 6
    writer.close({})
    assert writer.failed is None


def test_submit_waits_for_a_slow_writer_and_counts_it(tmp_path):
    chunks = list(pending(some_chunks(QUEUE_LENGTH + 1)))
    gate = Gate(chunks[0])
    writer = open_writer(tmp_path)
    for chunk in (gate, *chunks[1:QUEUE_LENGTH]):
        writer.submit(chunk)
    assert writer.waits == 0
    blocked = threading.Thread(target=writer.submit, args=(chunks[QUEUE_LENGTH],))
    blocked.start()
    blocked.join(0.15)
    assert blocked.is_alive()
    gate.open.set()
    blocked.join(10)
    writer.close({})
    assert writer.waits == 1
    assert writer.waited_ns > 100_000_000
    rank = load_run(tmp_path).ranks[0]
    assert rank.event_count == 3 * len(chunks)
    assert rank.closing["written"]["waits"] == 1


def test_an_event_of_the_writer_thread_itself_does_not_block_it(tmp_path):
    chunks = list(pending(some_chunks(QUEUE_LENGTH + 3)))
    writer = open_writer(tmp_path)

    class Nested(Gate):
        def build(self):
            for chunk in chunks[1:]:
                writer.submit(chunk)
            return super().build()

    nested = Nested(chunks[0])
    nested.open.set()
    writer.submit(nested)
    wait_until(lambda: writer.events_written == 3 * len(chunks))
    writer.close({})
    assert writer.failed is None


def fail_at(monkeypatch, module, name, number):
    """Let the call ``number`` of ``module.name`` and all later ones fail with a full disk."""
    original, calls = getattr(module, name), []

    def counted(*args, **kwargs):
        calls.append(name)
        if len(calls) > number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, counted)


# A chunk with strings and regions takes 4 writes, 6 fsyncs and 2 renames; there are two.
@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("write", n) for n in range(8)),
        *(("fsync", n) for n in range(12)),
        *(("replace", n) for n in range(4)),
    ],
)
def test_a_disk_that_fills_up_at_any_step(tmp_path, monkeypatch, name, number):
    builder = EventBuilder()
    for i in range(2):
        builder.event(f"op{i}", outputs=[Record("0", regions=(1, 2, 3, 4, 5, 6, 7, 8))])
    first, second = pending(builder.chunks(1))
    writer = open_writer(tmp_path)
    with monkeypatch.context() as patch:
        fail_at(patch, files.os, name, number)
        writer.submit(first)
        writer.submit(second)
        wait_until(lambda: writer.failed is not None)
        writer.submit(BuiltChunk(second.chunk, 2))
        writer.close({})
    assert isinstance(writer.failed, OSError)
    assert writer.failed.errno == errno.ENOSPC
    assert writer.events_written + writer.lost_events == 3
    assert not [n for n in rank_files_of(tmp_path) if n.endswith(".tmp") or n == "close.json"]
    rank = load_run(tmp_path).ranks[0]
    assert rank.partial
    assert rank.event_count == writer.events_written
    assert len(rank.region_records) == writer.events_written


def test_a_folder_that_is_taken_away(tmp_path):
    chunks = list(pending(some_chunks(2)))
    writer = open_writer(tmp_path / "run")
    writer.submit(chunks[0])
    wait_until(lambda: writer.events_written == 3)
    (tmp_path / "run").rename(tmp_path / "moved")
    writer.submit(chunks[1])
    writer.close({})
    assert isinstance(writer.failed, FileNotFoundError)
    assert load_run(tmp_path / "moved").ranks[0].event_count == 3


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), SystemExit(3)])
def test_a_chunk_that_cannot_be_built_stops_the_writer_only(tmp_path, error):
    class Broken(BuiltChunk):
        def build(self):
            raise error

    first, second = pending(some_chunks(2))
    writer = open_writer(tmp_path)
    writer.submit(first)
    writer.submit(Broken(second.chunk, second.first_event))
    for _ in range(2 * QUEUE_LENGTH):
        writer.submit(second)
    writer.close({})
    assert isinstance(writer.failed, CaptureError)
    assert type(error).__name__ in str(writer.failed)
    assert writer.lost_events == 3 * (2 * QUEUE_LENGTH + 1)
    assert load_run(tmp_path).ranks[0].event_count == 3


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("step", np.zeros(3, "<i8")),
        ("step", np.zeros(2, "<i4")),
        ("slot", np.zeros((6, 1), "<u2")),
        ("mix64", np.array([object()] * 6)),
    ],
)
def test_columns_that_do_not_fit_are_not_written(tmp_path, column, value):
    (chunk,) = pending(some_chunks(1))
    target = chunk.chunk.events if column in chunk.chunk.events else chunk.chunk.records
    target[column] = value
    writer = open_writer(tmp_path)
    writer.submit(chunk)
    writer.close({})
    assert f"column {column}" in str(writer.failed)
    assert rank_files_of(tmp_path) == ["chunks.jsonl", "open.json", "strings.jsonl"]


def test_a_summary_that_is_no_json_leaves_the_run_partial(tmp_path):
    writer = open_writer(tmp_path)
    writer.close({"loss": float("nan")})
    assert isinstance(writer.failed, CaptureError)
    assert load_run(tmp_path).ranks[0].partial


def test_after_the_end_submit_only_counts(tmp_path):
    writer = open_writer(tmp_path)
    writer.close({})
    writer.submit(next(pending(some_chunks(1))))
    writer.close({"again": True})
    assert writer.lost_events == 3
    assert "again" not in load_run(tmp_path).ranks[0].closing


def test_many_threads_may_submit(tmp_path):
    chunks = list(pending(some_chunks(40)))
    writer = open_writer(tmp_path)
    threads = [
        threading.Thread(target=lambda part: [writer.submit(c) for c in part], args=(chunks[i::4],))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close({})
    assert writer.failed is None
    assert load_run(tmp_path).ranks[0].event_count == 120


def test_a_line_file_that_cannot_be_opened_is_a_capture_error(tmp_path, monkeypatch):
    def refuse(_path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(rank_files, "LineFile", refuse)
    with pytest.raises(CaptureError, match="Permission denied"):
        open_writer(tmp_path)
