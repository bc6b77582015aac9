import json
import os
import subprocess
import sys
import types

import click
import pytest

from opguard.cli import main as cli_main
from opguard.cli.main import VERBS, main
from opguard.errors import CaptureError, FormatError, NativeError, UsageError


@pytest.fixture
def verb(monkeypatch):
    """Installs a verb ``probe`` that runs the given function."""

    def install(function, name="probe"):
        module = types.ModuleType(f"opguard.cli.{name}")
        module.command = click.command(name)(function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(VERBS, name, "For tests.")

    return install


def raising(error):
    def function():
        raise error

    return function


def test_help_lists_the_verbs_and_nothing_that_does_not_work_yet(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    listed = [line.split()[0] for line in out.split("Commands:\n")[1].splitlines()]
    assert listed == ["run", "compare", "show", "dump"]
    assert main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--stop-after" in out
    assert not any(flag in out for flag in ("--kernels", "--apihook", "--plan"))
    assert main(["compare", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--policy" in out
    assert not any(flag in out for flag in ("--report", "--window", "--full"))


def test_version(capsys):
    from opguard._version import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"opguard {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing command (see opguard --help)"),
        (["frobnicate"], "No such command 'frobnicate' (see opguard --help)"),
        (["--frobnicate"], "--frobnicate"),
        (["run"], "Missing argument 'SCRIPT' (see opguard run --help)"),
        (["run", "--mode", "fast", "x.py"], "Invalid value for '--mode'"),
        (["run", "--steps", "5:5", "x.py"], "--steps: 5:5 is an empty range"),
        (["compare", "a"], "Missing argument 'CANDIDATE' (see opguard compare --help)"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(capsys, arguments, words):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("opguard: error: ")
    assert words in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no such folder"), 2),
        (FormatError("chunk is damaged"), 5),
        (CaptureError("disk is full"), 6),
        (NativeError("no _C"), 6),
    ],
)
def test_our_errors_exit_with_their_code(verb, capsys, error, code):
    verb(raising(error))
    assert main(["probe"]) == code
    assert capsys.readouterr().err == f"opguard: error: {error}\n"


def test_error_texts_cannot_steer_the_terminal(verb, capsys):
    verb(raising(UsageError("no \x1b[31mfile\nopguard: identical")))
    assert main(["probe"]) == 2
    assert capsys.readouterr().err == ("opguard: error: no \\x1b[31mfile\\nopguard: identical\n")


def test_an_os_error_is_a_usage_error_with_its_file(verb, capsys):
    verb(raising(PermissionError(13, "Permission denied", "/x/run.json")))
    assert main(["probe"]) == 2
    assert capsys.readouterr().err == "opguard: error: Permission denied: /x/run.json\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), MemoryError(), RecursionError()])
def test_a_defect_exits_70_with_one_line(verb, capsys, monkeypatch, error):
    monkeypatch.delenv("OPGUARD_DEBUG", raising=False)
    verb(raising(error))
    assert main(["probe"]) == 70
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert type(error).__name__ in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback_and_keeps_the_code(verb, capsys, monkeypatch):
    verb(raising(ZeroDivisionError("oops")))
    assert main(["--debug", "probe"]) == 70
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("OPGUARD_DEBUG", "1")
    assert main(["probe"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_exits_130(verb, capsys):
    verb(raising(KeyboardInterrupt()))
    assert main(["probe"]) == 130
    assert capsys.readouterr().err == "opguard: error: interrupted\n"


@pytest.mark.parametrize("code", [0, 1, 3, 4])
def test_the_exit_code_is_what_the_verb_returns(verb, code):
    verb(lambda: code)
    assert main(["probe"]) == code


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["compare", "--json"], 2),
        (["--debug", "compare", "a", "b", "--json", "--frobnicate"], 2),
    ],
)
def test_json_promises_a_document_for_usage_errors_too(capsys, arguments, code):
    assert main(arguments) == code
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code
    assert document["error"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FormatError("damaged"), 5),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("oops"), 70),
        (FileNotFoundError(2, "No such file", "x"), 2),
    ],
)
def test_json_promises_a_document_for_every_error(monkeypatch, verb, capsys, error, code):
    def compare(as_json):
        raise error

    verb(click.option("--json", "as_json", is_flag=True)(compare), "compare")
    assert main(["compare", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["exit_code"] == code


def test_the_programs_own_json_flag_prints_no_document(verb, capsys):
    verb(raising(UsageError("x")))
    assert main(["probe"]) == 2
    assert main(["run", "--steps", "x", "script.py", "--json"]) == 2
    assert capsys.readouterr().out == ""


def run_python(code, **options):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options
    )


WRITE_A_LOT = (
    "import sys\n"
    "from opguard.cli.main import main, VERBS\n"
    "import click, types\n"
    "from opguard.cli.output import write\n"
    "module = types.ModuleType('opguard.cli.probe')\n"
    "module.command = click.command('probe')(lambda: [write('x' * 99999) for _ in range(99)])\n"
    "sys.modules['opguard.cli.probe'] = module\n"
    "VERBS['probe'] = ''\n"
    "sys.exit(main(['probe']))\n"
)


def test_a_reader_that_leaves_is_no_error():
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_A_LOT], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is Linux's")
def test_a_full_disk_behind_standard_output_is_said():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", WRITE_A_LOT],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "opguard: error: cannot write to standard output: No space left on device\n"
    )


def test_text_that_the_terminal_cannot_encode_is_escaped():
    done = run_python(
        "from opguard.cli.output import write; write('1 \\u2192 2\\n')",
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.stdout == "1 \\u2192 2\n"


def test_python_m_opguard_is_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "opguard", "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"opguard {cli_main.__version__}\n"
