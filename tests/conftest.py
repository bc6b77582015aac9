"""Settings of all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# A change lands or not by what it does: in CI, Hypothesis tries the same examples each time.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI", "").lower() not in ("", "0", "false"):
    settings.load_profile("ci")
