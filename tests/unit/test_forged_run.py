"""Runs whose digests all fit and whose content does not: the reader believes nothing."""

import io
import json
import random
import zipfile

import numpy as np
import pytest
from run_damage import (
    CHUNK,
    FILES,
    build_run,
    edit_object,
    replace_members,
    sign,
    sign_closing,
)

from opguard.errors import FormatError, OpguardError
from opguard.store import rank_columns
from opguard.store.run_reader import load_run


@pytest.fixture
def run(tmp_path):
    return build_run(tmp_path / "run")


def npy(values, **options):
    target = io.BytesIO()
    np.lib.format.write_array(target, values, **options)
    return target.getvalue()


def claim(shape, code="<u8", order="False"):
    """A ``.npy`` file of 8 bytes that says it has another shape."""
    header = f"{{'descr': {code!r}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    header += b" " * (117 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"12345678"


def test_signing_alone_changes_nothing(run):
    before = {name: (run / name).read_bytes() for name in FILES}
    sign(run)
    assert {name: (run / name).read_bytes() for name in FILES} == before


@pytest.mark.parametrize(
    ("members", "message"),
    [
        # The second chunk has 2 events and 4 records; 6 records stand before it.
        ({"mix64": npy(np.array([{}] * 4, object), allow_pickle=True)}, "mix64 is object"),
        ({"mix64": npy(np.zeros(4, ">u8"))}, "mix64 is >u8"),
        ({"mix64": npy(np.zeros(4, "<i8"))}, "mix64 is int64"),
        ({"mix64": npy(np.zeros((4, 1), "<u8"))}, "mix64 is uint64 with shape"),
        ({"mix64": npy(np.uint64(1))}, "mix64 is uint64 with shape"),
        ({"mix64": npy(np.zeros(3, "<u8"))}, "mix64 has 3 values, not 4"),
        ({"mix64": npy(np.zeros(4, "<u8"), version=(2, 0))}, "no valid archive"),
        ({"mix64": claim("(1000000000000,)")}, "no valid archive"),
        ({"mix64": claim("(-1,)")}, "mix64 is uint64 with shape"),
        ({"mix64": claim("(1,)")}, "mix64 has 1 values"),
        ({"mix64": claim("(1,")}, "no valid archive"),
        ({"mix64": claim("(" * 90 + ")" * 90)}, "mix64 is uint64 with shape"),
        ({"mix64": claim("(1,)", code="__import__('os')")}, "no valid archive"),
        ({"mix64": npy(np.zeros(4, "<u8"))[:-1]}, "no valid archive"),
        ({"mix64": b""}, "no valid archive"),
        ({"mix64": None}, "not the columns"),
        ({"extra": npy(np.zeros(4, "<u8"))}, "not the columns"),
        ({"../mix64": npy(np.zeros(4, "<u8"))}, "not the columns"),
        ({"first_record": npy(np.array([1, 3], "<u4"))}, "first_record does not ascend"),
        ({"first_record": npy(np.array([0, 5], "<u4"))}, "first_record does not ascend"),
        ({"first_producer": npy(np.array([0, 2, 1, 3], "<u4"))}, "first_producer does not"),
        ({"small_offset": npy(np.array([0, 0, 0, 2**32 - 1], "<u4"))}, "small_offset does not"),
        ({"boundary": npy(np.array([0, 99], "<u4"))}, "boundary names boundary 99"),
        ({"boundary": npy(np.array([0, 2**32 - 1], "<u4"))}, "boundary names"),
        ({"arguments": npy(np.array([0, 99], "<u4"))}, "arguments names arguments 99"),
        ({"slot": npy(np.array([0, 0, 0, 65535], "<u2"))}, "slot names slot 65535"),
        ({"shape": npy(np.array([0, 0, 9, 0], "<u4"))}, "shape names shape 9"),
        ({"dtype": npy(np.array([0, 0, 0, 200], "u1"))}, "dtype holds the unknown code 200"),
        ({"record_flags": npy(np.array([0, 0, 0, 0xF0], "u1"))}, "unknown code 15"),
        # In-place add's own input and output, and a record that does not exist.
        ({"producers": npy(np.array([0, 3, 0, 6, 8], "<u4"))}, "names record 6"),
        ({"producers": npy(np.array([0, 3, 0, 8, 8], "<u4"))}, "names record 8"),
        ({"producers": npy(np.array([0, 3, 0, 3, 9], "<u4"))}, "names record 9"),
        ({"producers": npy(np.array([0, 3, 0, 3, 2**32 - 1], "<u4"))}, "names record"),
    ],
)
def test_columns_that_are_wrong(run, members, message):
    replace_members(run / CHUNK, **members)
    sign(run)
    with pytest.raises(FormatError, match=message) as caught:
        load_run(run)
    assert str(run / CHUNK) in str(caught.value)


def test_a_record_with_more_small_bytes_than_any_may_have(run):
    replace_members(
        run / CHUNK,
        small=npy(np.zeros(65, "u1")),
        small_offset=npy(np.array([0, 0, 0, 0], "<u4")),
    )
    edit_object(run / "rank-00000" / "chunks.jsonl", 1, small=65)
    sign(run)
    with pytest.raises(FormatError, match="more than 64 bytes"):
        load_run(run)


@pytest.mark.parametrize(
    ("records", "values", "message"),
    [
        ([4], np.zeros((1, 8), "<u8"), "not ascending below 4"),
        ([1, 1], np.zeros((2, 8), "<u8"), "not ascending"),
        ([1], np.zeros((2, 8), "<u8"), "has shape"),
        ([1], np.zeros((1, 7), "<u8"), "has shape"),
        ([1, 2], np.asfortranarray(np.zeros((2, 8), "<u8")), "is uint64 with shape"),
    ],
)
def test_regions_that_are_wrong(run, records, values, message):
    path = run / "rank-00000" / "regions-000001.npz"
    replace_members(path, region_records=npy(np.array(records, "<u4")), region_values=npy(values))
    sign(run)
    with pytest.raises(FormatError, match=message) as caught:
        load_run(run)
    assert str(path) in str(caught.value)


def test_a_small_archive_that_claims_gigabytes(run, monkeypatch):
    huge = io.BytesIO()
    with zipfile.ZipFile(huge, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mix64.npy", npy(np.zeros(1 << 21, "<u8")))
    with zipfile.ZipFile(run / CHUNK) as archive:
        others = {n: archive.read(n) for n in archive.namelist() if n != "mix64.npy"}
    with zipfile.ZipFile(huge, "a") as archive:
        for name, data in others.items():
            archive.writestr(name, data)
    (run / CHUNK).write_bytes(huge.getvalue())
    assert len(huge.getvalue()) < 40_000
    sign(run)
    read = zipfile.ZipFile.read

    def stored_only(archive, info):
        assert info.compress_type == zipfile.ZIP_STORED  # else something would be unpacked
        return read(archive, info)

    monkeypatch.setattr(zipfile.ZipFile, "read", stored_only)
    with pytest.raises(FormatError, match=r"mix64\.npy claims 16777344 bytes in an archive"):
        load_run(run)


def test_an_archive_whose_directory_claims_gigabytes(run):
    data = bytearray((run / CHUNK).read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + 20 : entry + 28] = b"\xff\xff\xff\x7f" * 2
    (run / CHUNK).write_bytes(data)
    sign(run)
    with pytest.raises(FormatError, match="claims 2147483647 bytes"):
        load_run(run)


@pytest.mark.parametrize("name", ["events", "records", "producers", "small"])
def test_a_line_that_claims_gigabytes(run, monkeypatch, name):
    edit_object(run / "rank-00000" / "chunks.jsonl", 1, **{name: 10**12})
    sign_closing(run)
    monkeypatch.setattr(rank_columns, "RankColumns", None)  # nothing may be allocated
    with pytest.raises(FormatError, match=r"chunks\.jsonl: line 2: claims"):
        load_run(run)


@pytest.mark.parametrize(
    ("line", "changes", "message"),
    [
        (1, {"chunk": 0}, '"chunk" is 0, expected 1'),
        (1, {"events": 1}, r"close\.json: field \"events\" is 5, not 4"),
        (1, {"producers": 4}, "column producers has 5 values, not 4"),
        (1, {"events": -1}, '"events" is negative'),
        (1, {"records": 4.0}, '"records" is not int'),
        (1, {"strings": 10**9}, r"strings\.jsonl: \d+ lines, the chunks need"),
        (1, {"strings": 0}, "unknown|field"),
        (1, {"bytes": 10**12}, "claims"),
        (1, {"bytes": 9000}, "bytes, not the 9000"),
        (1, {"sha256": "0" * 64}, "does not match its sha256"),
        (1, {"regions": 3}, '"regions" is not dict'),
        (1, {"regions": {"bytes": 10**9, "sha256": ""}}, "regions claim"),
        (0, {"regions": {"bytes": 9, "sha256": ""}}, r"regions-000000\.npz"),
    ],
)
def test_chunk_lines_that_are_wrong(run, line, changes, message):
    edit_object(run / "rank-00000" / "chunks.jsonl", line, **changes)
    sign_closing(run)
    with pytest.raises(FormatError, match=message):
        load_run(run)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("boundary", "[0,0,1,-2]"),
        ("boundary", "[0,0,1,99]"),
        ("boundary", "[0,0,5,-1]"),
        ("boundary", "[0,99,0,-1]"),
        ("boundary", "[true,0,0,-1]"),
        ("boundary", "[0,0,0]"),
        ("boundary", "{}"),
        ("boundary", "["),
        ("boundary", "[" * 100_000),
        ("stack", "[0,7]"),
        ("stack", "7"),
        ("frame", '["f.py","7","g"]'),
        ("frame", "null"),
    ],
)
def test_strings_that_are_wrong(run, kind, value):
    path = run / "rank-00000" / "strings.jsonl"
    found = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    edit_object(path, found.index(kind), value=value)
    sign_closing(run)
    with pytest.raises(FormatError, match=r"strings\.jsonl"):
        load_run(run)


@pytest.mark.parametrize("changes", [{"id": 7}, {"kind": "site"}, {"value": 3}, {"id": "0"}])
def test_string_lines_that_are_wrong(run, changes):
    edit_object(run / "rank-00000" / "strings.jsonl", 0, **changes)
    sign_closing(run)
    with pytest.raises(FormatError, match=r"strings\.jsonl: line 1: field"):
        load_run(run)


VALUES = [None, True, -1, 0, 2**70, 1.5, "", "x", [], {}, [0], {"bytes": 1, "sha256": "x"}, "[[]]"]


def test_whatever_is_forged_only_our_errors_escape(run):
    chance = random.Random(20)
    originals = {name: (run / name).read_bytes() for name in FILES}
    refused = 0
    for _ in range(400):
        name = chance.choice(FILES)
        if name.endswith(".npz"):
            data = bytearray(originals[name])
            for _ in range(chance.choice([1, 1, 2, 8])):
                data[chance.randrange(len(data))] = chance.choice([0, 1, 0x50, 0xFF, 0x7F])
            (run / name).write_bytes(data[: chance.choice([None, None, len(data) // 2])])
            sign(run)
        else:
            lines = originals[name].splitlines()
            number = chance.randrange(len(lines))
            member = chance.choice([m for m in json.loads(lines[number]) if m != "digest"])
            edit_object(run / name, number, **{member: chance.choice(VALUES)})
            if not name.endswith(("run.json", "close.json")):
                sign_closing(run)
        try:
            load_run(run)
        except OpguardError:
            refused += 1
        for name, data in originals.items():
            (run / name).write_bytes(data)
    assert 200 < refused < 400
