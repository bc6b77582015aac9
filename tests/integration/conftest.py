"""Tests of what capture sees run under each mechanism."""

from __future__ import annotations

import pytest

import captured
from native_support import needs_native

BOTH = {
    "test_capture_events", "test_capture_places", "test_capture_values", "test_fidelity",
    "test_review_capture", "test_review_programs", "test_review_recorder",
}  # fmt: skip
"""Modules whose tests run twice; ``@pytest.mark.mechanism(name, reason=…)`` leaves one out."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ not in BOTH:
        return
    only = metafunc.definition.get_closest_marker("mechanism")
    names = ["native", "dispatch"] if only is None else [only.args[0]]
    metafunc.parametrize(
        "mechanism",
        [pytest.param(name, marks=needs_native if name == "native" else ()) for name in names],
        indirect=True,
    )


@pytest.fixture(autouse=True)
def mechanism(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How ``captured.capture`` and ``captured.run_source`` capture."""
    name = getattr(request, "param", "auto")
    monkeypatch.setattr(captured, "MECHANISM", name)
    return name
