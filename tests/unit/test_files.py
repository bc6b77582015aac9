"""Atomic files, growing line files, and objects that carry their digest."""

import errno
import hashlib
import json
import os
import threading

import pytest

from opguard.errors import FormatError
from opguard.store import files
from opguard.store.files import (
    LineFile,
    count_member,
    decode_object,
    encode_object,
    folder_lock,
    member,
    read_file,
    read_object,
    write_atomic,
)

VALUE = {"format": "opguard-run", "version": 1, "text": "é\u2028\udcff\n", "list": [1, None, 0.5]}


def sealed(covered: str) -> bytes:
    """``covered`` with the digest that belongs to it, as the docstring of the module says."""
    comma = "" if covered == "{" else ","
    digest = hashlib.sha256(covered.encode()).hexdigest()
    return f'{covered}{comma}"digest":"{digest}"}}\n'.encode()


def no_space(*_args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_stored_text_is_as_documented():
    assert encode_object({"a": 1, "b": ["x"]}) == sealed('{"a":1,"b":["x"]')
    assert encode_object({}) == sealed("{")


@pytest.mark.parametrize("value", [VALUE, {}, {"nested": {"digest": "no"}}])
def test_objects_come_back(value):
    line = encode_object(value)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert decode_object(line, "f") == value
    assert json.loads(line)["digest"] == line[-67:-3].decode()


def test_every_flipped_bit_shows():
    line = encode_object(VALUE)
    for position in range(len(line)):
        for bit in range(8):
            damaged = bytearray(line)
            damaged[position] ^= 1 << bit
            with pytest.raises(FormatError, match=r"^run\.json: "):
                decode_object(bytes(damaged), "run.json")


def test_every_truncation_shows():
    line = encode_object(VALUE)
    for length in range(len(line)):
        with pytest.raises(FormatError, match=r"^f: "):
            decode_object(line[:length], "f")


@pytest.mark.parametrize(
    "line",
    [
        sealed('{"a":NaN'),
        sealed('{"a":-Infinity'),
        sealed('{"a":1').replace(b',"digest"', b'"digest"'),
        sealed("{").replace(b'{"digest"', b'{,"digest"'),
        sealed("[1"),
        sealed('{"a":' + "[" * 100_000),
        sealed('{"a":' + "9" * 5000),
        sealed('{"a"'),
        sealed(""),
        b"\n",
        b"",
    ],
)
def test_what_is_no_object_is_refused_even_with_a_right_digest(line):
    with pytest.raises(FormatError, match=r"^f: "):
        decode_object(line, "f")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_lacks_are_not_written(value):
    with pytest.raises(ValueError, match="JSON"):
        encode_object({"a": value})


def test_members_have_exactly_their_type():
    value = {"n": 3, "flag": True, "negative": -1, "text": "x"}
    assert member(value, "text", str, "f") == "x"
    assert count_member(value, "n", "f") == 3
    for name in ("flag", "negative", "text", "missing"):
        with pytest.raises(FormatError, match=f'^f: field "{name}"'):
            count_member(value, name, "f")


def test_atomic_write_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "x"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("step", ["open", "write", "fsync", "replace"])
def test_a_failed_atomic_write_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "x"
    write_atomic(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(files.os, step, no_space)
        with pytest.raises(OSError, match="No space"):
            write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_short_writes_are_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(files.os, "write", lambda fd, data: write(fd, data[:3]))
    write_atomic(tmp_path / "x", b"0123456789")
    assert (tmp_path / "x").read_bytes() == b"0123456789"


def test_a_line_file_keeps_its_digest_and_cuts_off_what_failed(tmp_path, monkeypatch):
    path = tmp_path / "lines"
    path.touch()
    lines = LineFile(path)
    lines.append(b"one\n")
    write = os.write

    def half_then_full(descriptor, data):
        monkeypatch.setattr(files.os, "write", no_space)
        return write(descriptor, data[:2])

    monkeypatch.setattr(files.os, "write", half_then_full)
    with pytest.raises(OSError, match="No space"):
        lines.append(b"two\n")
    assert path.read_bytes() == b"one\n"
    monkeypatch.undo()
    lines.append(b"three\n")
    lines.close()
    assert path.read_bytes() == b"one\nthree\n"
    assert lines.digest == hashlib.sha256(b"one\nthree\n").hexdigest()


def test_reading_refuses_what_is_no_file_of_that_size(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "big").write_bytes(b"12345")
    for name, limit, message in (
        ("pipe", 10, "not a regular file"),
        (".", 10, "not a regular file"),
        ("big", 4, "5 bytes, more than the 4"),
        ("big/x", 4, "cannot be read: Not a directory"),
        ("gone", 4, "missing"),
    ):
        with pytest.raises(FormatError, match=message):
            read_file(tmp_path / name, limit)
    assert read_file(tmp_path / "big", 5) == b"12345"


def test_an_object_file_of_two_lines_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(encode_object({"a": 1}) * 2)
    with pytest.raises(FormatError, match="damaged"):
        read_object(tmp_path / "x")


def test_the_folder_lock_excludes_and_leaves_no_file(tmp_path):
    order = []

    def second():
        with folder_lock(tmp_path):
            order.append("second")

    with folder_lock(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert os.listdir(tmp_path) == []
