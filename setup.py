"""Builds the native parts; everything else is in pyproject.toml.

OPGUARD_TRACING_BUILD    0, 1 or cpu: opguard._C, linked to the torch that is installed
OPGUARD_CALLSITE_TRACER  0 or 1: the launch hook and the CUPTI reader

Both default to 1. What a part needs and does not find stops the build, with a message that names
it and the variable that leaves the part out.
"""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import setuptools

ROOT = Path(__file__).resolve().parent
SWITCHES = {
    "OPGUARD_TRACING_BUILD": ("0", "1", "cpu"),
    "OPGUARD_CALLSITE_TRACER": ("0", "1"),
}
PURE = "OPGUARD_TRACING_BUILD=0 OPGUARD_CALLSITE_TRACER=0 pip install ."
NATIVE = "pip install --no-build-isolation ."
# Metadata counts: pip asks for it before it downloads what the package depends on.
BUILDS = {"build", "build_ext", "bdist_wheel", "dist_info", "editable_wheel", "install", "develop"}
OLDEST_SETUPTOOLS = 77  # as in pyproject.toml: older ones misread the license there
FACTS = "_native_build.json"


def stop(text):
    """End the build; both variables may be inherited, so their values are shown."""
    values = [
        f"{name}={os.environ[name]}" if name in os.environ else f"{name} not set"
        for name in SWITCHES
    ]
    raise SystemExit(f"\nopguard: {text}\n({', '.join(values)})")


def switch(name):
    """Value of a build variable; stops at one that it cannot have."""
    value = os.environ.get(name, "1")
    if value not in SWITCHES[name]:
        stop(f"{name}={value} is not known; it is one of {', '.join(SWITCHES[name])}.")
    return value


def compiler():
    """The command that compiles C++, as torch chooses it."""
    command = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    if shutil.which(command[0]) is None:
        stop(
            f"no C++ compiler: {command[0]} is not on PATH. Install one or name it with CXX, "
            f"or leave the recorder out:\n  {PURE}"
        )
    return command


def python_headers():
    """Folders of Python's C headers."""
    folders = {sysconfig.get_path(name) for name in ("include", "platinclude")}
    if not any(Path(folder, "Python.h").is_file() for folder in folders):
        stop(
            f"no Python headers: {sysconfig.get_path('include')}/Python.h is missing (Debian and "
            f"Ubuntu have it in python3-dev). Without them, leave the recorder out:\n  {PURE}"
        )
    return sorted(folders)


def torch_builder():
    """torch and its build helpers, from the environment that OpGuard is installed into."""
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError as error:
        stop(
            f"the recorder is built against the torch that you have, and this build cannot import "
            f"torch ({error}).\npip builds apart from the environment unless it is told not to. "
            f"With torch installed there:\n  {NATIVE}\nWithout the recorder, in Python alone:\n"
            f"  {PURE}"
        )
    return torch, cpp_extension


def facts(torch, command):
    """What the module was built for; `opguard.fingerprint.native` compares before it loads it."""
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return {
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "toolkit": None,
        "architectures": [],
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "python": platform.python_version(),
        "platform": sysconfig.get_platform(),
        "glibc": platform.libc_ver()[1],
        "compiler": (version.stdout.splitlines() or [shlex.join(command)])[0],
        "parts": ["recorder"],
    }


def extension(cpp_extension, headers):
    """`opguard._C` from everything in csrc but its tests."""
    found = sorted(path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*.*"))
    found = [path for path in found if path.parts[1] not in ("tests", "sanitize")]
    system = [*cpp_extension.include_paths(), *headers]
    return cpp_extension.CppExtension(
        "opguard._C",
        [str(path) for path in found if path.suffix == ".cpp"],
        depends=[str(path) for path in found if path.suffix == ".h"],
        include_dirs=[str(ROOT / "csrc")],
        libraries=["shm"],
        # As system headers, which also takes them out of -I: warnings are errors in ours alone.
        extra_compile_args=[flag for folder in system for flag in ("-isystem", folder)]
        + ["-O3", "-g0", "-DNDEBUG", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
        # Messages name a file by its place in the sources, whatever folder they were built in.
        + [f"-ffile-prefix-map={ROOT}/="]
        # Last, so that a sanitizer's flags win.
        + shlex.split(os.environ.get("CXXFLAGS", "")),
    )


def native():
    """Arguments of `setup` that build `opguard._C`."""
    torch, cpp_extension = torch_builder()
    command = compiler()
    part = extension(cpp_extension, python_headers())
    text = json.dumps(facts(torch, command), indent=2) + "\n"

    class BuildNative(cpp_extension.BuildExtension):
        """Leaves the facts beside the module, wherever that goes."""

        def run(self):
            super().run()
            module = self.get_ext_fullpath(part.name)
            for folder in {Path(self.build_lib, "opguard"), Path(module).parent}:
                (folder / FACTS).write_text(text)

        def get_outputs(self):
            return [*super().get_outputs(), str(Path(self.build_lib, "opguard", FACTS))]

        def get_output_mapping(self):
            mapping = super().get_output_mapping()
            return mapping | {
                str(Path(built).parent / FACTS): str(Path(source).parent / FACTS)
                for built, source in mapping.items()
            }

    # 1torch291cu130x1c1: torch 2.9.1, CUDA 13.0, with _C and with the launch hook.
    release = torch.__version__.partition("+")[0].replace(".", "")
    device = "cpu" if torch.version.cuda is None else "cu" + torch.version.cuda.replace(".", "")
    return {
        "ext_modules": [part],
        "cmdclass": {"build_ext": BuildNative},
        "options": {"bdist_wheel": {"build_number": f"1torch{release}{device}x1c0"}},
    }


if int(setuptools.__version__.partition(".")[0]) < OLDEST_SETUPTOOLS:
    stop(
        f"setuptools {setuptools.__version__} is too old, and without build isolation it is the "
        f"environment's that builds:\n  pip install 'setuptools>={OLDEST_SETUPTOOLS}'"
    )
tracing = switch("OPGUARD_TRACING_BUILD")
switch("OPGUARD_CALLSITE_TRACER")  # its parts come with CUDA: until then there is nothing to build
wanted = tracing != "0" and bool(BUILDS & set(sys.argv))
if wanted and sys.platform != "linux":
    print(f"opguard: the recorder is for Linux; on {sys.platform} OpGuard is built without it.")
    wanted = False
setuptools.setup(**native() if wanted else {})
