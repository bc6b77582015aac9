"""Runs come back as they were written, or with an error that names what is wrong."""

import os
import shutil

import numpy as np
import pytest
from run_damage import (
    FILES,
    REGIONS,
    build_events,
    build_run,
    edit_object,
    sign_closing,
)

from builders import OPENING, EventBuilder, Record, many_chunks, write_run
from opguard.errors import FormatError, UsageError
from opguard.model import Boundary
from opguard.store.run_reader import load_run


@pytest.fixture
def run(tmp_path):
    return build_run(tmp_path / "run")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_events_come_back_whatever_the_chunks_were(tmp_path, size):
    run = load_run(build_run(tmp_path, size))
    rank = run.ranks[0]
    assert (run.world_size, list(run.ranks), rank.partial, rank.problems) == (1, [0], False, ())
    assert rank.first_record.tolist() == [0, 1, 4, 6, 9, 10]
    assert rank.first_producer.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 4, 6, 7]
    assert rank.producers.tolist() == [0, 3, 0, 3, 0, 3, 8]
    assert rank.small_offset.tolist() == [0, 0, 0, 0, 2, 2, 10, 10, 10, 10, 10]
    assert rank.small.tobytes() == b"\x01\x028bytes!!"
    assert rank.mix64.tolist() == [2**64 - 1, 5, 6, 7, 7, 1, 6, 7, 8, 8]
    assert rank.xor32.tolist() == [0, 0, 0, 9, 0, 0, 0, 0, 0, 0]
    assert rank.record_flags.tolist() == [1, 2, 0, 1, 0, 1, 0, 0, 1, 1]
    assert rank.step.tolist() == [0, 2, 0, 0, 0]
    assert rank.flags.tolist() == [0, 0, 0, 0, 2]
    assert rank.host_ns.tolist() == [1000, 1001, 1002, 1003, 1004]
    assert rank.region_records.tolist() == [8]
    assert rank.region_values.tolist() == [list(REGIONS)]
    slots = rank.strings.values("slot")
    assert [slots[i] for i in rank.slot[1:4]] == ["self", "mat2", "0"]
    assert rank.boundaries[rank.boundary[1]] == Boundary(
        "aten.mm.default", "Net.fc", "forward",
        (("train.py", 7, "step"), ("train.py", 40, "<module>")),
    )  # fmt: skip
    assert rank.boundaries[rank.boundary[0]].stack == ()
    assert rank.strings.values("arguments")[rank.arguments[1]] == "alpha=1"
    assert rank.opening.items() >= OPENING.items()
    assert rank.closing["exit_code"] == 0


def test_many_events_come_back(tmp_path):
    chunks = list(many_chunks(10_000, size=999))
    rank = load_run(write_run(tmp_path, chunks)).ranks[0]
    assert rank.event_count == 10_000
    for name in ("mix64", "shape", "slot", "strides"):
        written = np.concatenate([chunk.records[name] for chunk in chunks])
        np.testing.assert_array_equal(getattr(rank, name), written)
    np.testing.assert_array_equal(rank.producers, np.concatenate([c.producers for c in chunks]))
    assert (np.diff(rank.first_record)[:10]).tolist() == [2, 3, 3, 2, 3, 4, 2, 3, 2, 3]


def test_a_run_without_events_is_valid(tmp_path):
    rank = load_run(write_run(tmp_path, [])).ranks[0]
    assert (rank.event_count, rank.record_count, rank.partial) == (0, 0, False)
    assert rank.first_record.tolist() == [0]


def test_events_without_records_are_valid(tmp_path):
    builder = EventBuilder()
    builder.event("aten.noop.default", flags=1)
    rank = load_run(write_run(tmp_path, builder.chunks())).ranks[0]
    assert rank.first_record.tolist() == [0, 0]


def test_the_folder_may_be_named_in_any_way(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    link = run.parent / "link"
    link.symlink_to(run)
    for path in ("run", "run/", "./run/", str(run) + "/", run, link):
        assert load_run(path).ranks[0].event_count == 5


def test_what_is_no_run_is_a_usage_error(run, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.pt").write_text("x")
    for path, message in (
        (tmp_path / "gone", "no such folder"),
        (tmp_path / "empty", "holds no run"),
        (tmp_path / "file", "not a folder"),
        (tmp_path / "file" / "below", "not a folder"),
        (tmp_path / "other", "holds no run"),
        (run / "rank-00000", "holds no run"),
        ("a\0b", "cannot be read"),
        (tmp_path / ("x" * 300), "cannot be read"),
    ):
        with pytest.raises(UsageError, match=message):
            load_run(path)
    shutil.rmtree(run / "rank-00000")
    with pytest.raises(UsageError, match="holds no rank"):
        load_run(run)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_any_file_is_found(run, name):
    path = run / name
    data = path.read_bytes()
    step = max(1, len(data) // 150)  # every third byte of the largest, padding and directory too
    for position in [*range(0, len(data), step), len(data) - 1]:
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(FormatError) as caught:
            load_run(run)
        assert str(run) in str(caught.value)
    path.write_bytes(data)
    assert load_run(run).ranks[0].event_count == 5


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_found(run, name):
    path = run / name
    data = path.read_bytes()
    lines = [i + 1 for i in range(len(data) - 1) if data[i] == 10]
    for length in sorted({*range(0, len(data), max(1, len(data) // 60)), *lines, len(data) - 1}):
        path.write_bytes(data[:length])
        with pytest.raises(FormatError, match=str(path)):
            load_run(run)
    path.write_bytes(data + b"\0")
    with pytest.raises(FormatError, match=str(path)):
        load_run(run)


@pytest.mark.parametrize("name", [n for n in FILES if n not in {"run.json", FILES[-1]}])
def test_a_missing_file_is_found(run, name):
    (run / name).unlink()
    with pytest.raises(FormatError, match=str(run / name)):
        load_run(run)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_something_else_in_the_place_of_a_file(run, kind):
    path = run / "rank-00000" / "chunk-000000.npz"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(FormatError, match=str(path)):
        load_run(run)


def test_a_chunk_that_no_line_counts(run):
    rank = run / "rank-00000"
    shutil.copy(rank / "chunk-000000.npz", rank / "chunk-000002.npz")
    with pytest.raises(FormatError, match=r"chunk-000002\.npz: no line .* closed rank"):
        load_run(run)
    (rank / "close.json").unlink()
    found = load_run(run).ranks[0]
    assert found.problems == ("chunk-000002.npz: no line of chunks.jsonl counts it",)
    assert (found.event_count, found.partial) == (5, True)


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_partial_rank_without_the_end_of_its_last_line(run, cut):
    rank = run / "rank-00000"
    (rank / "close.json").unlink()
    lines = (rank / "chunks.jsonl").read_bytes()
    (rank / "chunks.jsonl").write_bytes(lines[:-cut])
    found = load_run(run).ranks[0]
    assert found.event_count == 3
    assert found.problems == (
        "chunk-000001.npz: no line of chunks.jsonl counts it",
        "regions-000001.npz: no line of chunks.jsonl counts it",
        "chunks.jsonl: its last line is cut off",
    )
    with (rank / "strings.jsonl").open("ab") as strings:
        strings.write(b'{"id":99,"kind":"oper')
    assert load_run(run).ranks[0].event_count == 3


@pytest.mark.parametrize("name", FILES[:-1])
def test_damage_to_what_counts_is_found_in_a_partial_rank_too(run, name):
    (run / "rank-00000" / "close.json").unlink()
    path = run / name
    data = path.read_bytes()
    for position in range(0, len(data) - 1, max(1, len(data) // 40)):
        damaged = bytearray(data)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=str(run)):
            load_run(run)


def test_an_interrupted_program_is_partial(tmp_path):
    write_run(tmp_path, build_events().chunks(), summary={"interrupted": True})
    assert load_run(tmp_path).ranks[0].partial


@pytest.mark.parametrize("name", ["run.json", "rank-00000/open.json"])
def test_a_newer_format_says_both_versions(run, name):
    edit_object(run / name, version=2)
    sign_closing(run)
    with pytest.raises(FormatError, match=f"{run / name}: format version 2, .* version 1"):
        load_run(run)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("run.json", {"format": "other"}, "\"format\" is 'other'"),
        ("run.json", {"version": True}, '"version"'),
        ("run.json", {"world_size": -1}, '"world_size" is negative'),
        ("run.json", {"world_size": 0}, "world_size is 0"),
        ("run.json", {"run_id": None}, '"run_id" is not str'),
        ("rank-00000/open.json", {"rank": 1}, '"rank" is 1, expected 0'),
        ("rank-00000/open.json", {"fingerprint_version": "1"}, '"fingerprint_version"'),
        ("rank-00000/close.json", {"files": []}, '"files" is not dict'),
        ("rank-00000/close.json", {"written": ...}, '"written" is not dict'),
    ],
)
def test_objects_with_wrong_members(run, name, changes, message):
    edit_object(run / name, **changes)
    if "open" in name:
        sign_closing(run)
    with pytest.raises(FormatError, match=message):
        load_run(run)


def two_ranks(folder):
    for rank in (0, 1):
        builder = EventBuilder()
        builder.event(f"rank{rank}", outputs=[Record("0")])
        write_run(folder, builder.chunks(), rank=rank, world_size=3, run_id="job")
    return folder


def test_the_ranks_that_are_there(tmp_path):
    run = load_run(two_ranks(tmp_path))
    assert (run.run_id, run.world_size, list(run.ranks)) == ("job", 3, [0, 1])
    assert [run.ranks[r].boundaries[0].operator for r in (0, 1)] == ["rank0", "rank1"]
    (tmp_path / "rank-00000").rename(tmp_path / "notes")
    assert list(load_run(tmp_path).ranks) == [1]


def test_ranks_of_different_formats_name_both(tmp_path):
    two_ranks(tmp_path)
    edit_object(tmp_path / "rank-00001" / "open.json", fingerprint_version=2)
    with pytest.raises(FormatError) as caught:
        load_run(tmp_path)
    assert "rank-00001/open.json: format version 1, fingerprint version 2" in str(caught.value)
    assert "rank-00000/open.json: format version 1, fingerprint version 1" in str(caught.value)


def test_more_ranks_than_the_world_has(tmp_path):
    two_ranks(tmp_path)
    edit_object(tmp_path / "run.json", world_size=1)
    with pytest.raises(FormatError, match=r"world_size is 1, and there is .*rank-00001"):
        load_run(tmp_path)
