"""The one place that holds versions. Imports nothing: ``opguard run`` reads it before a program."""

from typing import Final

__version__ = "0.2.0.dev0"

FINGERPRINT_VERSION: Final = 1
"""Version of the fingerprint's definition (DESIGN section 4); runs of another are no match."""
