"""What setup.py builds, refuses and says. Nothing here needs a network."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SWITCHES = ("OPGUARD_TRACING_BUILD", "OPGUARD_CALLSITE_TRACER")
PURE = {"OPGUARD_TRACING_BUILD": "0", "OPGUARD_CALLSITE_TRACER": "0"}
COMPILER = os.environ.get("CXX", "c++").split()[0]
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler")

# A module without torch's headers compiles in a second.
MODULE = """
#include <Python.h>
#include "common/answer.h"

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr,
                                 nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__C() {
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddIntConstant(module, "answer", kAnswer);
  return module;
}
"""


@pytest.fixture
def project(tmp_path):
    """A project of this build with a C++ module that has one number in it."""
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    package = tmp_path / "src" / "opguard"
    package.mkdir(parents=True)
    for name in ("_version.py", "py.typed"):
        shutil.copy(ROOT / "src" / "opguard" / name, package)
    (package / "__init__.py").touch()
    for folder in ("bind", "common", "tests"):
        (tmp_path / "csrc" / folder).mkdir(parents=True)
    (tmp_path / "csrc" / "bind" / "module.cpp").write_text(MODULE)
    (tmp_path / "csrc" / "common" / "answer.h").write_text("constexpr long kAnswer = 41;\n")
    (tmp_path / "csrc" / "tests" / "main.cpp").write_text("int main() { return PyInit__C; }\n")
    return tmp_path


def build(project, *commands, before="", **variables):
    """Run setup.py; ``before`` is code that runs ahead of it."""
    script = f"import runpy, sys\n{before}\nrunpy.run_path('setup.py', run_name='__main__')"
    environment = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    return subprocess.run(
        [sys.executable, "-c", script, *commands],
        cwd=project,
        env=environment | {"PYTHONWARNINGS": "ignore"} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


WITHOUT_TORCH = "sys.modules['torch'] = None"


def wheel(project):
    (found,) = (project / "dist").glob("*.whl")
    return found.name, zipfile.ZipFile(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPGUARD_TRACING_BUILD", "2"),
        ("OPGUARD_TRACING_BUILD", "cuda"),
        ("OPGUARD_TRACING_BUILD", ""),
        ("OPGUARD_CALLSITE_TRACER", "cpu"),
        ("OPGUARD_CALLSITE_TRACER", "yes"),
    ],
)
def test_an_unknown_value_is_refused_by_name(project, name, value):
    done = build(project, "sdist", **{name: value})
    assert done.returncode == 1
    assert f"opguard: {name}={value} is not known; it is one of 0, 1" in done.stderr
    (other,) = set(SWITCHES) - {name}
    assert f"{other} not set" in done.stderr
    assert not (project / "dist").exists()


@pytest.mark.parametrize("tracer", ["0", "1"])
@pytest.mark.parametrize("tracing", ["0", "1", "cpu"])
def test_known_values_describe_the_package_without_torch(project, tracing, tracer):
    values = {"OPGUARD_TRACING_BUILD": tracing, "OPGUARD_CALLSITE_TRACER": tracer}
    done = build(project, "--name", before=WITHOUT_TORCH, **values)
    assert (done.returncode, done.stdout) == (0, "opguard\n"), done.stderr


@pytest.mark.parametrize("command", ["dist_info", "bdist_wheel"])
def test_without_torch_it_prints_the_command_that_finds_torch(project, command):
    done = build(project, command, before=WITHOUT_TORCH)
    assert done.returncode == 1
    assert "cannot import torch" in done.stderr
    assert "\n  pip install --no-build-isolation .\n" in done.stderr
    pure = "OPGUARD_TRACING_BUILD=0 OPGUARD_CALLSITE_TRACER=0 pip install ."
    assert f"\n  {pure}\n" in done.stderr
    assert "(OPGUARD_TRACING_BUILD not set, OPGUARD_CALLSITE_TRACER not set)" in done.stderr


def test_without_a_compiler_it_names_the_compiler_and_the_flag(project):
    done = build(project, "dist_info", CXX="no-such-compiler -m64", OPGUARD_TRACING_BUILD="cpu")
    assert done.returncode == 1
    assert "no C++ compiler: no-such-compiler is not on PATH" in done.stderr
    assert "\n  OPGUARD_TRACING_BUILD=0 " in done.stderr
    assert "(OPGUARD_TRACING_BUILD=cpu, " in done.stderr


@needs_compiler
def test_without_python_headers_it_names_them(project):
    before = "import sysconfig; sysconfig.get_path = lambda *_: '/nowhere'"
    done = build(project, "dist_info", before=before)
    assert done.returncode == 1
    assert "no Python headers: /nowhere/Python.h is missing" in done.stderr


def test_an_old_setuptools_is_named(project):
    done = build(project, "egg_info", before="import setuptools; setuptools.__version__ = '65.5.0'")
    assert done.returncode == 1
    assert "setuptools 65.5.0 is too old" in done.stderr
    assert "pip install 'setuptools>=77'" in done.stderr


def test_elsewhere_than_on_linux_it_builds_python_alone_and_says_so(project):
    before = f"{WITHOUT_TORCH}; import setuptools; sys.platform = 'other'"
    done = build(project, "bdist_wheel", before=before)
    assert done.returncode == 0, done.stderr
    assert "the recorder is for Linux; on other OpGuard is built without it" in done.stdout
    assert wheel(project)[0].endswith("-py3-none-any.whl")


def test_with_both_flags_0_the_wheel_is_pure_and_needs_no_torch(project):
    # What an earlier build left in place is not part of it.
    for left in ("_C.cpython-311-x86_64-linux-gnu.so", "_native_build.json"):
        (project / "src" / "opguard" / left).touch()
    done = build(project, "bdist_wheel", before=WITHOUT_TORCH, CXX="no-such-compiler", **PURE)
    assert done.returncode == 0, done.stderr
    name, archive = wheel(project)
    assert name.endswith("-py3-none-any.whl")
    package = {member for member in archive.namelist() if member.startswith("opguard/")}
    assert package == {"opguard/__init__.py", "opguard/_version.py", "opguard/py.typed"}


def test_the_source_distribution_is_made_without_torch_and_holds_the_sources(project):
    (project / "src" / "opguard" / "_native_build.json").touch()
    done = build(project, "sdist", before=WITHOUT_TORCH, CXX="no-such-compiler")
    assert done.returncode == 0, done.stderr
    (found,) = (project / "dist").glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"setup.py", "csrc/bind/module.cpp", "csrc/common/answer.h"} <= names
    assert "src/opguard/_native_build.json" not in names


@needs_compiler
def test_the_wheel_holds_the_module_and_what_it_was_built_for(project):
    done = build(project, "bdist_wheel", OPGUARD_TRACING_BUILD="cpu")
    assert done.returncode == 0, done.stderr
    name, archive = wheel(project)
    release = torch.__version__.partition("+")[0].replace(".", "")
    device = "cpu" if torch.version.cuda is None else "cu" + torch.version.cuda.replace(".", "")
    assert f"-1torch{release}{device}x1c0-cp" in name
    facts = json.loads(archive.read("opguard/_native_build.json"))
    assert list(facts) == [
        "torch", "torch_cuda", "toolkit", "architectures", "cxx11_abi", "python", "platform",
        "glibc", "compiler", "parts",
    ]  # fmt: skip
    assert facts["torch"] == torch.__version__
    assert facts["parts"] == ["recorder"]
    assert [n for n in archive.namelist() if n.startswith("opguard/_C.") and n.endswith(".so")]


@needs_compiler
def test_in_place_a_changed_header_builds_the_module_again(project):
    def answer():
        done = build(project, "build_ext", "--inplace")
        assert done.returncode == 0, done.stderr
        script = "import opguard._C; print(opguard._C.answer)"
        source = {"PYTHONPATH": str(project / "src"), "PATH": os.environ["PATH"]}
        command = [sys.executable, "-S", "-c", script]
        return subprocess.run(command, env=source, capture_output=True, text=True, timeout=60)

    first = answer()
    assert first.stdout == "41\n", first.stderr
    assert (project / "src" / "opguard" / "_native_build.json").is_file()
    (project / "csrc" / "common" / "answer.h").write_text("constexpr long kAnswer = 42;\n")
    assert answer().stdout == "42\n"


@needs_compiler
def test_a_warning_in_our_sources_stops_the_build(project):
    header = project / "csrc" / "common" / "answer.h"
    header.write_text(header.read_text() + "static int unused() { return 1; }\n")
    done = build(project, "build_ext")
    assert done.returncode == 1
    assert "unused-function" in done.stdout + done.stderr
