"""String tables: the Python ones and the C++ ones give the same answers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_support import needs_native
from opguard.capture import interning
from opguard.fingerprint import native
from opguard.model import STRING_KINDS

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # surrogates too


def native_interner() -> Any:
    return native.module().Interner()


MAKERS = [
    pytest.param(interning.Interner, id="python"),
    pytest.param(native_interner, id="native", marks=needs_native),
]


@pytest.mark.parametrize("make", MAKERS)
def test_each_kind_counts_from_zero_in_order_of_first_use(make: Callable[[], Any]) -> None:
    interner = make()
    assert [interner.intern("frame", text) for text in ("b", "a", "b", "")] == [0, 1, 0, 2]
    assert interner.intern("stack", "a") == 0
    assert [interner.text("frame", number) for number in range(3)] == ["b", "a", ""]
    assert interner.text("stack", 0) == "a"


@pytest.mark.parametrize("make", MAKERS)
def test_drain_gives_each_string_once_in_order(make: Callable[[], Any]) -> None:
    interner = make()
    assert interner.drain() == ()
    interner.intern("slot", "0")
    interner.intern("frame", "x")
    interner.intern("slot", "0")
    assert interner.drain() == (("slot", 0, "0"), ("frame", 0, "x"))
    interner.intern("frame", "x")
    interner.intern("slot", "1")
    assert interner.drain() == (("slot", 1, "1"),)
    assert interner.text("slot", 0) == "0"


@pytest.mark.parametrize("make", MAKERS)
def test_an_id_that_nobody_got_is_an_error(make: Callable[[], Any]) -> None:
    interner = make()
    interner.intern("frame", "x")
    with pytest.raises(IndexError):
        interner.text("frame", 1)


@needs_native
def test_kinds_are_those_of_the_model() -> None:
    assert native.module().STRING_KINDS == STRING_KINDS
    with pytest.raises(ValueError, match="no kind of string: line"):
        native_interner().intern("line", "x")
    with pytest.raises(ValueError, match="no kind of string: line"):
        native_interner().text("line", 0)


@needs_native
@given(st.lists(st.tuples(st.sampled_from(STRING_KINDS), ANY_TEXT)))
def test_both_languages_agree(calls: list[tuple[Any, str]]) -> None:
    python, compiled = interning.Interner(), native_interner()
    for at, (kind, text) in enumerate(calls):
        identity = python.intern(kind, text)
        assert compiled.intern(kind, text) == identity
        assert compiled.text(kind, identity) == text
        if at % 4 == 3:
            assert compiled.drain() == python.drain()
    assert compiled.drain() == python.drain()


@pytest.mark.parametrize("make", MAKERS)
def test_a_file_name_that_is_no_text_keeps_its_bytes(make: Callable[[], Any]) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    interner = make()
    interner.intern("frame", name)
    assert os.fsencode(interner.text("frame", 0)) == b"caf\xe9.py"
    assert interner.drain() == (("frame", 0, name),)


@pytest.mark.parametrize("make", MAKERS)
def test_threads_get_the_same_ids(make: Callable[[], Any]) -> None:
    interner = make()
    texts = [f"text {number}" for number in range(500)]

    def work(first: int) -> tuple[dict[str, int], list[Any]]:
        drained: list[Any] = []
        ids = {}
        for text in texts[first:] + texts[:first]:
            ids[text] = interner.intern("frame", text)
            if ids[text] % 50 == 0:
                drained += interner.drain()
        return ids, drained

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(work, range(0, 400, 50)))
    finally:
        sys.setswitchinterval(interval)
    ids = answers[0][0]
    assert sorted(ids.values()) == list(range(len(texts)))
    assert all(answer[0] == ids for answer in answers)
    new = [string for answer in answers for string in answer[1]] + list(interner.drain())
    assert sorted(new) == sorted(("frame", number, text) for text, number in ids.items())


@needs_native
def test_json_of_every_code_point() -> None:
    json_string = native.module().json_string
    for start in range(0, sys.maxunicode + 1, 4096):
        text = "".join(map(chr, range(start, start + 4096)))
        encoded = text.encode("utf-8", "surrogatepass")
        assert json_string(encoded) == json.dumps(text), hex(start)


@needs_native
@given(ANY_TEXT)
def test_json_of_any_text(text: str) -> None:
    encoded = text.encode("utf-8", "surrogatepass")
    assert native.module().json_string(encoded) == json.dumps(text)


@needs_native
@given(st.binary(max_size=12))
def test_json_of_bytes_that_are_no_text(data: bytes) -> None:
    text = native.module().json_string(data)
    # CESU surrogates are told from broken bytes by `surrogatepass` alone.
    if b"\xed" not in data:
        assert text == json.dumps(data.decode("utf-8", "surrogateescape"))
    assert text.isascii()
    assert json.dumps(json.loads(text)) == text


@needs_native
@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_json_of_numbers(values: list[int]) -> None:
    assert native.module().json_list(values) == interning.json_list(values)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", sorted(interning.OPEN_KINDS))
def test_of_ever_other_strings_the_older_ones_are_forgotten(
    make: Callable[[], Any], kind: str
) -> None:
    interner = make()
    length = interning.MOST_CHARACTERS // 4 - 128  # 4 of them fit
    large = [chr(97 + number) * length for number in range(6)]
    assert [interner.intern(kind, text) for text in large[:4]] == [0, 1, 2, 3]
    assert interner.intern(kind, large[0]) == 0
    assert [interner.intern(kind, text) for text in large[4:]] == [4, 5]
    again = interner.intern(kind, large[0])
    assert again == 6
    assert interner.text(kind, 6) == large[0]
    assert [entry[1] for entry in interner.drain()] == list(range(7))
    assert interner.drain() == ()
    with pytest.raises((IndexError, KeyError)):
        interner.text(kind, 0)


@pytest.mark.parametrize("make", MAKERS)
def test_names_are_never_forgotten(make: Callable[[], Any]) -> None:
    interner = make()
    large = [chr(97 + number) * (interning.MOST_CHARACTERS // 2) for number in range(4)]
    assert [interner.intern("slot", text) for text in [*large, large[0]]] == [0, 1, 2, 3, 0]
    assert interner.text("slot", 0) == large[0]
