"""``opguard run`` on real programs: what a user sees is what ``python`` shows."""

import os
import signal
import subprocess
import sys
import time

import pytest

OPGUARD = [sys.executable, "-m", "opguard"]

PROGRAMS = {
    "returns": "print('done')",
    "exits": "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
    "exits with text": "raise SystemExit('gone wrong')",
    "exits with nothing": "import sys; sys.exit()",
    "raises": "def inner():\n    raise ValueError('bad \\u2192 value')\n\ninner()\n",
    "raises from": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('k') from e\n",
    "does not compile": "print('never'\n",
    "reads its arguments": "import sys; print(sys.argv[1:], __name__, __file__)",
    "imports its neighbour": "import neighbour; print(neighbour.VALUE)",
    "looks at main": "import __main__, sys; print(__main__ is sys.modules['__main__'], "
    "__main__.__file__)",
    "exits late": "import atexit\nWORD = 'late'\natexit.register(lambda: print(WORD))\n",
    "trains": "import torch; torch.manual_seed(0); x = torch.randn(3, requires_grad=True); "
    "(x * x).sum().backward(); print(x.grad.sum().item().hex())",
}


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "neighbour.py").write_text("VALUE = 41\n")
    return tmp_path


@pytest.mark.parametrize("name", PROGRAMS)
def test_output_and_exit_code_are_those_of_python(folder, name):
    (folder / "program.py").write_text(PROGRAMS[name])
    arguments = ["program.py", "--help", "-o", "x", "--", "a b"]
    plain = run(sys.executable, *arguments, cwd=folder)
    captured = run(*OPGUARD, "run", "-o", "out", *arguments, cwd=folder)
    assert captured.returncode == plain.returncode
    assert captured.stdout == plain.stdout
    assert captured.stderr == plain.stderr


def test_modules_run_as_with_python_m(folder):
    package = folder / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tool.py").write_text("import sys; print(sys.argv[1:], __name__, __package__)")
    plain = run(sys.executable, "-m", "pkg.tool", "--force", "x", cwd=folder)
    captured = run(*OPGUARD, "run", "-o", "out", "-m", "pkg.tool", "--force", "x", cwd=folder)
    assert plain.stdout == "['--force', 'x'] __main__ pkg\n"
    assert (captured.stdout, captured.returncode) == (plain.stdout, 0)


def test_a_folder_that_holds_something_is_refused_before_the_program_starts(folder):
    (folder / "program.py").write_text("print('started')")
    (folder / "out").mkdir()
    (folder / "out" / "precious").write_text("x")
    done = run(*OPGUARD, "run", "-o", "out", "program.py", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("opguard: error: ")
    assert done.stderr.count("\n") == 1
    assert (folder / "out" / "precious").read_text() == "x"


@pytest.mark.parametrize("target", [["absent.py"], ["-m", "absent.module"]])
def test_a_program_that_does_not_exist_leaves_no_run(folder, target):
    done = run(*OPGUARD, "run", "-o", "out", *target, cwd=folder)
    assert done.returncode in (1, 2)
    assert done.returncode == 2 or "absent" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unnamed_run_is_told_and_can_be_shown(folder):
    (folder / "program.py").write_text("import torch; torch.ones(3).sum()")
    done = run(*OPGUARD, "run", "program.py", cwd=folder)
    assert done.returncode == 0
    where = done.stderr.removeprefix("opguard: run stored in ").rstrip("\n")
    assert where.startswith(os.path.join(".opguard", "runs"))
    shown = run(*OPGUARD, "show", where, cwd=folder)
    assert shown.returncode == 0
    assert "aten.sum.default" in shown.stdout


def test_interrupt_ends_the_program_with_130_and_keeps_what_was_stored(folder):
    (folder / "program.py").write_text(
        "import torch, time\ntorch.ones(3).sum()\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [*OPGUARD, "run", "-o", "out", "program.py"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.rstrip().endswith("KeyboardInterrupt")
    shown = run(*OPGUARD, "show", "out", cwd=folder)
    assert shown.returncode == 0
    assert "partial: interrupted" in shown.stdout
    assert "aten.sum.default" in shown.stdout
