"""What each part may load. Every check runs in a fresh interpreter."""

import json
import pkgutil
import subprocess
import sys
import time

import pytest

import opguard

ANALYSIS = (
    "store", "align", "certify", "gate", "report", "api", "cli", "policy", "columns", "frames",
    "settings", "model", "errors", "fingerprint.spec",
)  # fmt: skip

BLOCK = """
import importlib.abc, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} must not be imported here")

sys.meta_path.insert(0, Block())
"""


def run_blocking(blocked, code, *arguments):
    """Run code in an interpreter in which importing any of the blocked packages raises."""
    return subprocess.run(
        [sys.executable, "-c", f"BLOCKED = {set(blocked)!r}\n{BLOCK}\n{code}", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def modules_below(part):
    """The module ``opguard.<part>`` and all modules inside it."""
    name = f"opguard.{part}"
    spec = pkgutil.resolve_name("importlib.util:find_spec")(name)
    found = [name] if spec is not None else []
    if spec is not None and spec.submodule_search_locations:
        found += [
            m.name for m in pkgutil.walk_packages(spec.submodule_search_locations, name + ".")
        ]
    return found


def test_the_blocker_blocks():
    assert run_blocking({"torch"}, "import torch").returncode == 1


@pytest.mark.parametrize("part", ANALYSIS)
def test_the_analysis_side_imports_without_torch(part):
    modules = modules_below(part)
    assert modules, f"opguard.{part} is gone: mend this table"
    done = run_blocking({"torch"}, "".join(f"import {name}\n" for name in modules))
    assert done.returncode == 0, done.stderr


def test_import_opguard_loads_only_the_standard_library():
    code = (
        "import json, sys; before = set(sys.modules); import opguard; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    tops = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert "opguard" in tops
    assert tops - {"opguard"} <= sys.stdlib_module_names


def test_the_run_command_loads_neither_torch_nor_numpy_nor_rich():
    done = run_blocking({"torch", "numpy", "rich"}, "import opguard.cli.main, opguard.cli.run")
    assert done.returncode == 0, done.stderr


def test_a_program_that_uses_none_of_them_runs_without_them(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text("import sys\nprint({'torch', 'numpy', 'rich'} & set(sys.modules))\n")
    code = "import sys; from opguard.cli.main import main; sys.exit(main(sys.argv[1:]))"
    out = str(tmp_path / "out")
    done = run_blocking({"rich"}, code, "run", "-o", out, str(script))
    assert done.stdout == "set()\n", done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]])
def test_help_needs_click_alone(arguments):
    code = "import sys; from opguard.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = run_blocking({"torch", "numpy", "rich", "perfetto", "pluggy"}, code, *arguments)
    assert done.returncode == 0, done.stderr


def test_help_is_quick():
    def once():
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "opguard", "--help"], capture_output=True, timeout=60)
        return time.perf_counter() - started

    # The bound is 0.3 s on an idle machine; the least of several, because others share this one.
    assert min(once() for _ in range(5)) < 0.6


def test_what_the_package_offers_exists():
    from opguard import api

    for name in set(opguard.__all__) - {"__version__"}:
        assert getattr(opguard, name) is getattr(api, name)
    assert dir(opguard) == sorted(opguard.__all__)
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        opguard.frobnicate  # noqa: B018


def test_the_subpackage_does_not_take_the_functions_name():
    import opguard.capture
    from opguard import api, capture

    assert opguard.capture is capture is api.capture
    assert sys.modules["opguard.capture"] is not capture
