"""The steps that end a capture."""

from __future__ import annotations

import pytest

from opguard.capture.teardown import Teardown


def test_a_step_in_which_the_end_is_asked_for_again() -> None:
    """A signal handler that stops the capture while it is being stopped."""
    done: list[str] = []
    teardown = Teardown()

    def first() -> None:
        done.append("first")
        if done.count("first") == 1:
            teardown.finish()

    teardown.begin(first, lambda: done.append("second"), lambda: done.append("third"))
    teardown.finish()
    assert done == ["first", "first", "second", "third"]
    teardown.finish()
    assert done == ["first", "first", "second", "third"]


def test_an_interrupted_step_is_done_again_and_the_interruption_raised_last() -> None:
    done: list[str] = []
    teardown = Teardown()

    def interrupted() -> None:
        done.append("interrupted")
        raise KeyboardInterrupt

    teardown.begin(interrupted, lambda: done.append("last"))
    with pytest.raises(KeyboardInterrupt):
        teardown.finish()
    assert done == ["interrupted", "interrupted", "last"]
