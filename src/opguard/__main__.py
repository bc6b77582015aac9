"""``python -m opguard`` is the program ``opguard``."""

from __future__ import annotations

import sys

from opguard.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
