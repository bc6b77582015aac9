"""The verbs run and compare against stand-ins of what they call."""

import dataclasses
import json
import sys
import types
from pathlib import Path

import pytest

from opguard.cli import output
from opguard.cli.main import main
from opguard.errors import CaptureError, FormatError
from opguard.report.result import Result
from opguard.settings import CaptureSettings, Target

RESULT = Result("identical", 0, "IDENTICAL", ("IDENTICAL",), "All that was compared agrees.")


@pytest.fixture
def launched(monkeypatch):
    """What ``run_program`` was called with; its exit code is ``launched.code``."""
    seen = types.SimpleNamespace(code=0, settings=None, target=None, error=None)

    def run_program(settings, target, say):
        assert callable(say)
        seen.settings, seen.target = settings, target
        if seen.error is not None:
            raise seen.error
        return seen.code

    module = types.ModuleType("opguard.capture.launch")
    module.run_program = run_program
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for variable in ("OPGUARD_MODE", "OPGUARD_MECHANISM", "OPGUARD_REQUIRE_NATIVE", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    return seen


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (["train.py"], Target("train.py")),
        (["train.py", "--help"], Target("train.py", args=("--help",))),
        (
            ["train.py", "-o", "x", "--", "-m", "--debug", "", "--mode=full"],
            Target("train.py", args=("-o", "x", "--", "-m", "--debug", "", "--mode=full")),
        ),
        (["-m", "pkg.mod"], Target("pkg.mod", is_module=True)),
        (
            ["-m", "pkg.mod", "--force", "-m", "a b"],
            Target("pkg.mod", is_module=True, args=("--force", "-m", "a b")),
        ),
        (["--", "-odd.py", "x"], Target("-odd.py", args=("x",))),
    ],
)
def test_everything_after_the_script_reaches_it_untouched(launched, arguments, target):
    assert main(["run", "-o", "out", *arguments]) == 0
    assert launched.target == target
    assert launched.settings == CaptureSettings(output=Path("out"))


def test_options_before_the_script_are_ours(launched, monkeypatch):
    monkeypatch.setenv("OPGUARD_MODE", "full")
    assert main(["run", "--output", "o", "--force", "--steps", "1:3", "--stop-after", "9events",
                 "--watch", "a,b", "t.py"]) == 0  # fmt: skip
    assert launched.settings == CaptureSettings(
        output=Path("o"), force=True, mode="full", steps=(1, 3), stop_after=(9, "events"),
        watch=("a", "b"),
    )  # fmt: skip


def test_an_unnamed_run_gets_a_folder_that_is_told_at_the_end(launched, capsys):
    launched.code = 3
    assert main(["run", "t.py"]) == 3
    folder = launched.settings.output
    assert folder.parent == Path(".opguard/runs")
    captured = capsys.readouterr()
    assert captured.err == f"opguard: run stored in {folder}\n"
    assert captured.out == ""


def test_a_named_run_adds_nothing_to_the_programs_output(launched, capsys):
    assert main(["run", "-o", "out", "t.py"]) == 0
    assert capsys.readouterr() == ("", "")


def test_ranks_have_to_name_their_folder(launched, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(["run", "t.py"]) == 2
    assert "2 ranks have to share a folder" in capsys.readouterr().err
    assert launched.target is None


@pytest.mark.parametrize("code", [0, 1, 3, 130, 255])
def test_the_programs_exit_code_is_kept(launched, code):
    launched.code = code
    assert main(["run", "-o", "out", "t.py"]) == code


def test_capture_that_cannot_start_exits_6(launched, capsys):
    launched.error = CaptureError("cannot write")
    assert main(["run", "t.py"]) == 6
    assert capsys.readouterr().err == "opguard: error: cannot write\n"


@pytest.fixture
def compared(monkeypatch):
    seen = types.SimpleNamespace(result=RESULT, call=None)

    def compare(baseline, candidate, *, policy=None):
        seen.call = (baseline, candidate, policy)
        if isinstance(seen.result, Exception):
            raise seen.result
        return seen.result

    monkeypatch.setattr("opguard.api.compare", compare)
    return seen


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("identical", 0), ("diverged", 1), ("uncomparable", 3), ("inconclusive", 4)],
)
def test_compare_prints_the_report_and_exits_with_the_verdict(compared, capsys, verdict, code):
    compared.result = dataclasses.replace(RESULT, verdict=verdict, exit_code=code)
    assert main(["compare", "a", "b"]) == code
    captured = capsys.readouterr()
    assert captured.out.startswith(f"opguard: {verdict} ")
    assert captured.err == ""
    assert compared.call == (Path("a"), Path("b"), None)


def test_compare_json_prints_the_result_and_nothing_else(compared, capsys):
    compared.result = dataclasses.replace(RESULT, verdict="diverged", exit_code=1)
    assert main(["compare", "a", "b", "--json", "--policy", "p.toml"]) == 1
    captured = capsys.readouterr()
    assert captured.out == compared.result.to_json()
    assert captured.err == ""
    assert compared.call == (Path("a"), Path("b"), Path("p.toml"))


def test_compare_json_prints_an_error_document(compared, capsys):
    compared.result = FormatError("chunk 3 is damaged")
    assert main(["compare", "--json", "a", "b"]) == 5
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"error": "chunk 3 is damaged", "exit_code": 5}
    assert captured.err == "opguard: error: chunk 3 is damaged\n"


def test_a_reader_that_leaves_does_not_change_the_verdict(compared, monkeypatch):
    compared.result = dataclasses.replace(RESULT, verdict="diverged", exit_code=1)

    def write(_):
        raise BrokenPipeError

    monkeypatch.setattr("opguard.cli.compare.write", write)
    assert main(["compare", "a", "b"]) == 1


@pytest.mark.parametrize(
    ("environ", "tty", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colour_needs_a_terminal_and_no_no_color(monkeypatch, environ, tty, expected):
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(isatty=lambda: tty))
    assert output.wants_color(environ) is expected


def test_the_width_follows_the_terminal(monkeypatch, compared, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    compared.result = dataclasses.replace(RESULT, reason="word " * 40)
    assert main(["compare", "a", "b"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[1:])) <= 40
