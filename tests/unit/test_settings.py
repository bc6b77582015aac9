import dataclasses
from pathlib import Path

import pytest

from opguard.errors import UsageError
from opguard.settings import (
    OPTIONS,
    CaptureSettings,
    new_run_folder,
    parse_names,
    parse_steps,
    parse_stop_after,
    parse_switch,
    resolve,
)


@pytest.mark.parametrize(("text", "expected"), [("0:1", (0, 1)), ("3:10", (3, 10))])
def test_steps_are_a_half_open_range(text, expected):
    assert parse_steps(text) == expected


@pytest.mark.parametrize(
    "text", ["", "3", "3:", ":3", "3:3", "4:3", "-1:3", "a:b", "1:2:3", "1 :2"]
)
def test_steps_of_another_form_are_refused(text):
    with pytest.raises(UsageError):
        parse_steps(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10", (10, "steps")),
        ("1step", (1, "steps")),
        ("10steps", (10, "steps")),
        ("500events", (500, "events")),
        ("1 event", (1, "events")),
    ],
)
def test_stop_after_counts_steps_unless_it_says_events(text, expected):
    assert parse_stop_after(text) == expected


@pytest.mark.parametrize(
    "text", ["", "0", "0events", "-1", "1.5", "steps", "10 seconds", "10stepsx"]
)
def test_stop_after_of_another_form_is_refused(text):
    with pytest.raises(UsageError):
        parse_stop_after(text)


def test_names_are_split_at_commas_and_stripped():
    assert parse_names("loss, acc*,,grad.norm ") == ("loss", "acc*", "grad.norm")
    with pytest.raises(UsageError):
        parse_names(" , ")


def test_switch_variables_are_0_or_1():
    assert parse_switch("1") is True
    assert parse_switch("0") is False
    with pytest.raises(UsageError):
        parse_switch("yes")


def test_every_row_sets_a_field_and_every_field_has_a_row():
    assert [option.field for option in OPTIONS] == [
        field.name for field in dataclasses.fields(CaptureSettings)
    ]


def test_nothing_given_leaves_the_defaults():
    assert resolve({}, {}) == CaptureSettings()
    assert CaptureSettings().mode == "trusted"


def test_given_values_are_parsed():
    given = {
        "output": "out",
        "force": True,
        "mode": "full",
        "steps": "2:5",
        "stop_after": "7events",
        "watch": "a,b*",
        "require_native": None,
    }
    assert resolve(given, {}) == CaptureSettings(
        output=Path("out"),
        force=True,
        mode="full",
        steps=(2, 5),
        stop_after=(7, "events"),
        watch=("a", "b*"),
    )


def test_a_flag_beats_its_variable_and_the_variable_beats_the_default():
    environ = {"OPGUARD_MODE": "collectives", "OPGUARD_REQUIRE_NATIVE": "1"}
    assert resolve({}, environ).mode == "collectives"
    assert resolve({}, environ).require_native is True
    assert resolve({"mode": "full"}, environ).mode == "full"
    assert resolve({}, {"OPGUARD_MODE": ""}).mode == "trusted"


def test_errors_name_flag_or_variable():
    with pytest.raises(UsageError, match=r"--stop-after: expected .*'soon'"):
        resolve({"stop_after": "soon"}, {})
    with pytest.raises(UsageError, match=r"OPGUARD_MODE: expected one of trusted, full"):
        resolve({}, {"OPGUARD_MODE": "fast"})


def test_new_folders_lie_under_opguard_runs_and_differ():
    folders = {new_run_folder() for _ in range(100)}
    assert len(folders) == 100
    assert {folder.parent for folder in folders} == {Path(".opguard/runs")}
