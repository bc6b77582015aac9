"""Build-time switches of the native parts. Everything else is in pyproject.toml."""

import os

from setuptools import setup

SWITCHES = ("OPGUARD_TRACING_BUILD", "OPGUARD_CALLSITE_TRACER")

for name in SWITCHES:
    value = os.environ.get(name, "0")
    if value != "0":
        raise SystemExit(
            f"opguard: {name}={value} asks for a native part, and this release has none yet. "
            f"Unset {name}, or set it to 0, to build the pure-Python package."
        )

setup()
