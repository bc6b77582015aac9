"""The loader of the C++ module: whatever is wrong with it is one sentence."""

import json
import platform
import subprocess
import sys

import pytest
import torch

from native_support import needs_native
from opguard.errors import NativeError
from opguard.fingerprint import native

PYTHON = platform.python_version()
FITTING = {"torch": torch.__version__, "python": PYTHON}


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Pretend that a build left these facts, and a module with this source, or none."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(native, "NAME", "opguard_c_stand_in")
    monkeypatch.setattr(native, "FACTS", tmp_path / "_native_build.json")
    native._load.cache_clear()

    def leave(facts, source=None):
        (tmp_path / "_native_build.json").write_text(facts)
        if source is not None:
            (tmp_path / "opguard_c_stand_in.py").write_text(source)

    yield leave
    sys.modules.pop("opguard_c_stand_in", None)
    native._load.cache_clear()


def refused():
    """The one reason that all three functions give."""
    assert not native.available()
    with pytest.raises(NativeError) as raised:
        native.module()
    assert str(raised.value) == native.why_not() != ""
    assert "\n" not in native.why_not()
    return native.why_not()


def test_a_fitting_module_is_returned(built):
    built(json.dumps(FITTING), "answer = 41\n")
    assert native.module().answer == 41
    assert (native.available(), native.why_not()) == (True, "")


def test_nothing_built(built):
    assert refused() == "opguard_c_stand_in is not built"


def test_another_torch_is_named_and_the_module_is_not_loaded(built):
    built(json.dumps(FITTING | {"torch": "2.4.1+cpu"}), "raise SystemExit('loaded')\n")
    assert refused() == (
        f"opguard_c_stand_in was built for torch 2.4.1+cpu, this is {torch.__version__}: "
        "install OpGuard again, with pip install --no-build-isolation"
    )


def test_another_python_is_named(built):
    built(json.dumps(FITTING | {"python": "3.9.1"}))
    assert f"was built for Python 3.9.1, this is {PYTHON}" in refused()


def test_a_module_that_is_gone(built):
    built(json.dumps(FITTING))
    assert "is not built, though _native_build.json is there" in refused()


def test_a_module_that_does_not_load(built):
    built(json.dumps(FITTING), "raise ImportError('undefined symbol: _ZN3c106detail')\n")
    assert "does not load (undefined symbol: _ZN3c106detail): install" in refused()


@pytest.mark.parametrize("facts", ["", "{", "[1]", '"text"', "\udcff"])
def test_damaged_facts(built, facts, tmp_path):
    built("{}", "raise SystemExit('loaded')\n")
    (tmp_path / "_native_build.json").write_bytes(facts.encode(errors="surrogateescape"))
    assert refused().startswith("_native_build.json ")


def test_facts_without_a_torch_never_fit(built):
    built("{}", "raise SystemExit('loaded')\n")
    assert "was built for torch None" in refused()


@needs_native
def test_the_module_that_is_here_was_built_for_this_torch_and_this_python():
    facts = native.build_facts()
    assert facts["torch"] == torch.__version__
    assert facts["python"].rpartition(".")[0] == PYTHON.rpartition(".")[0]
    assert "recorder" in facts["parts"]


@needs_native
def test_the_module_that_is_here_loads_first_thing_in_a_process():
    script = "from opguard.fingerprint import native; print(native.module().__name__)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "opguard._C\n", done.stderr
