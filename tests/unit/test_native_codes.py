"""Every number that both languages use has the same value in both."""

from __future__ import annotations

from typing import Any

import pytest

from native_support import needs_native
from opguard.capture.rows import EVENTS_A_CHUNK
from opguard.fingerprint import native
from opguard.model import (
    DTYPES,
    PHASES,
    REASON_SHIFT,
    EventFlag,
    Reason,
    RecordFlag,
)

pytestmark = needs_native


@pytest.fixture
def codes() -> dict[str, Any]:
    found: dict[str, Any] = native.module().CODES
    return found


def test_dtypes_of_what_is_no_tensor(codes: dict[str, Any]) -> None:
    names = ["python_bool", "python_int", "python_float", "python_complex", "bytes"]
    assert codes["dtypes"] == {name: DTYPES.index(name) for name in names}


def test_flags_of_events_and_records(codes: dict[str, Any]) -> None:
    assert codes["event_flags"] == {flag.name: flag.value for flag in EventFlag}
    assert codes["record_flags"] == {flag.name: flag.value for flag in RecordFlag}


def test_reasons_and_phases(codes: dict[str, Any]) -> None:
    assert codes["reason_shift"] == REASON_SHIFT
    assert codes["reasons"] == [reason.name.lower() for reason in Reason]
    assert codes["phases"] == list(PHASES)


def test_a_block_is_a_chunk(codes: dict[str, Any]) -> None:
    assert codes["events_a_block"] == EVENTS_A_CHUNK
