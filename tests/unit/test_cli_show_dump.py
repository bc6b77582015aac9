import dataclasses
import json

import numpy as np
import pytest

from opguard.cli import dump, show
from opguard.cli.main import main
from opguard.model import DTYPES, Boundary, EventFlag, RankEvents, RecordFlag, Run, Strings

OUTPUT, FRESH, VIA, VOID = RecordFlag.OUTPUT, RecordFlag.FRESH, RecordFlag.VIA, RecordFlag.VOID
FREED = 1 << 4
F32 = DTYPES.index("float32")
LIBRARY = ("/usr/lib/python3/site-packages/torch/nn/modules/linear.py", 125, "forward")


def rank_events(rank=0, closing=None):
    """addmm reads a fresh x and a known weight; mul_ writes in place; then one state entry."""
    boundaries = (
        Boundary("aten.addmm.default", "Net.fc", "forward", (LIBRARY, ("net.py", 7, "forward"))),
        Boundary("aten.mul_.Tensor", "", "optimizer", ()),
        Boundary("opguard.state", "", "other", ()),
    )
    slots = ("x", "weight", "0", "self", "self!", "net.fc.weight", "rng")
    # event 0: x, weight, rng -> 0; event 1: self -> self!; event 2: net.fc.weight
    record_flags = [FRESH, VIA, FREED, OUTPUT, VOID, OUTPUT, OUTPUT]
    producers = [[], [], [], [], [3], [4, 3], [5]]
    first_producer = np.cumsum([0] + [len(p) for p in producers])
    return RankEvents(
        rank=rank,
        boundary=np.array([0, 1, 2], np.uint32),
        step=np.array([0, 0, 1], np.int32),
        thread=np.array([0, 1, 0], np.uint16),
        stream=np.zeros(3, np.uint16),
        host_ns=np.zeros(3, np.uint64),
        arguments=np.array([0, 1, 0], np.uint32),
        flags=np.array([0, EventFlag.RAISED, EventFlag.STATE], np.uint8),
        first_record=np.array([0, 4, 6, 7], np.int64),
        slot=np.array([0, 1, 6, 2, 3, 4, 5], np.uint16),
        dtype=np.full(7, F32, np.uint8),
        record_flags=np.array(record_flags, np.uint8),
        shape=np.array([0, 1, 1, 0, 0, 0, 1], np.uint32),
        strides=np.zeros(7, np.uint32),
        mix64=np.arange(7, dtype=np.uint64) + np.uint64(0xABC0),
        xor32=np.zeros(7, np.uint32),
        first_producer=first_producer.astype(np.int64),
        producers=np.array([p for ps in producers for p in ps], np.int64),
        small_offset=np.zeros(8, np.int64),
        small=np.zeros(0, np.uint8),
        region_records=np.zeros(0, np.int64),
        region_values=np.zeros((0, 8), np.uint64),
        boundaries=boundaries,
        strings=Strings({"arguments": ("", "other=2"), "slot": slots, "shape": ("[2,3]", "[]")}),
        opening={
            "command": ["train.py", "--name", "a b"],
            "mode": "trusted",
            "mechanism": "dispatch",
            "environment": {"torch": "2.13.0", "variables": {"OMP_NUM_THREADS": "1"}, "none": None},
        },
        closing=closing,
        problems=() if closing else ("chunk 3 has no line",),
    )


CLOSED = {"coverage": {"foreign_values": 2, "lost_events": 0}, "losses": {}}
RUN = Run("runs/a\x1b", "id-1", 2, {0: rank_events(0, CLOSED), 1: rank_events(1)})


@pytest.fixture
def stored(monkeypatch):
    monkeypatch.setattr(dump, "load_run", lambda _: RUN)
    monkeypatch.setattr(show, "load_run", lambda _: RUN)
    monkeypatch.setenv("COLUMNS", "80")


def dumped(capsys):
    assert main(["dump", "anything"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_dump_prints_a_header_and_then_the_events_of_each_rank(stored, capsys):
    lines = dumped(capsys)
    assert len(lines) == 2 * (1 + 3)
    header = lines[0]
    assert (header["rank"], header["world_size"], header["run_id"]) == (0, 2, "id-1")
    assert (header["events"], header["records"], header["partial"]) == (3, 7, False)
    assert header["open"]["mode"] == "trusted"
    assert header["close"] == CLOSED
    assert (lines[4]["rank"], lines[4]["partial"], lines[4]["close"]) == (1, True, None)
    assert lines[4]["problems"] == ["chunk 3 has no line"]
    assert lines[1:4] == lines[5:8]


def test_dump_tells_all_of_an_event(stored, capsys):
    assert dumped(capsys)[1] == {
        "seq": 0,
        "op": "aten.addmm.default",
        "module": "Net.fc",
        "phase": "forward",
        "step": 0,
        "thread": 0,
        "arguments": "",
        "file": "net.py",
        "line": 7,
        "inputs": [
            {
                "slot": "x", "dtype": "float32", "shape": [2, 3], "mix64": "000000000000abc0",
                "known": False, "producers": [],
            },
            {
                "slot": "weight", "dtype": "float32", "shape": [], "mix64": "000000000000abc1",
                "known": True, "producers": [], "via": True,
            },
            {
                "slot": "rng", "dtype": "float32", "shape": [], "mix64": None,
                "known": True, "producers": [], "reason": "freed",
            },
        ],
        "outputs": [
            {
                "slot": "0", "dtype": "float32", "shape": [2, 3], "mix64": "000000000000abc3",
                "known": False, "producers": [],
            },
        ],
    }  # fmt: skip


def test_dump_names_producers_by_event_and_slot_and_marks_what_is_rare(stored, capsys):
    event = dumped(capsys)[2]
    assert event["raised"] is True
    assert (event["file"], event["line"], event["arguments"]) == (None, None, "other=2")
    assert event["inputs"][0]["producers"] == [[0, "0"]]
    assert event["inputs"][0]["void"] is True
    assert event["outputs"][0]["producers"] == [[1, "self"], [0, "0"]]


def shown(capsys):
    assert main(["show", "anything"]) == 0
    text = capsys.readouterr().out
    blocks = text.split("\n\n")
    return text, {
        b.splitlines()[0]: [" ".join(x.split()) for x in b.splitlines()[1:]] for b in blocks
    }


def test_show_tells_what_the_run_holds(stored, capsys):
    text, blocks = shown(capsys)
    assert "\x1b" not in text
    assert blocks["Run"] == [
        "folder runs/a\\x1b",
        "id id-1",
        "command train.py --name 'a b'",
        "mode trusted",
        "mechanism dispatch",
        "ranks 2 of 2",
    ]
    assert " ".join(blocks["Ranks"]) == (
        "rank 0 2 operator calls, 1 of final state, 7 tensor records, steps 0 to 0, 2 threads, "
        "complete "
        "rank 1 2 operator calls, 1 of final state, 7 tensor records, steps 0 to 0, 2 threads, "
        "partial: never closed"
    )
    assert blocks["Partial"] == ["rank 1 chunk 3 has no line"]
    assert blocks["Environment"] == ["torch 2.13.0", "variables.OMP_NUM_THREADS 1"]
    assert blocks["Coverage of rank 0"] == [
        "unwritten memory 1 tensor record",
        "no fingerprint: freed 1 tensor record",
        "foreign_values 2",
    ]
    assert blocks["Operators"] == ["2 aten.addmm.default", "2 aten.mul_.Tensor"]
    assert blocks["Modules"] == ["2 (none)", "2 Net.fc"]
    assert blocks["Phases"] == ["2 forward", "2 optimizer"]


def test_show_names_missing_ranks_and_copes_with_none(monkeypatch, capsys):
    monkeypatch.setattr(show, "load_run", lambda _: Run("runs/a", "id-1", 2, {}))
    _, blocks = shown(capsys)
    assert blocks["Run"] == ["folder runs/a", "id id-1", "ranks 0 of 2", "missing 0, 1"]


def test_show_says_what_was_left_out(monkeypatch, capsys):
    rank = rank_events(0, {"coverage": {"unarmed_threads": 2}, "exception": "ValueError",
                           "interrupted": True})  # fmt: skip
    rank = dataclasses.replace(rank, opening={"settings": {"steps": [1, 3]}, "mode": "collectives"})
    monkeypatch.setattr(show, "load_run", lambda _: Run("runs/a", "id-1", 1, {0: rank}))
    monkeypatch.setenv("COLUMNS", "120")
    _, blocks = shown(capsys)
    assert "fingerprinted only steps 1 to 2" in blocks["Run"]
    assert "fingerprinted only communication" in blocks["Run"]
    assert " ".join(blocks["Ranks"]).endswith("partial: it ended with ValueError")
    threads = "threads not captured 2, which ran before the capture started"
    assert threads in blocks["Coverage of rank 0"]
