"""Python numbers as bytes: what an operator returns that is no tensor is compared by its bits."""

from __future__ import annotations

import struct
from typing import Final

from opguard.model import DTYPES

_UINT64: Final = (1 << 64) - 1


def number_bytes(value: complex) -> tuple[int, bytes]:
    """dtype code and bytes of a bool, int, float or complex; ints modulo 2^64."""
    if isinstance(value, bool):
        dtype, data = "python_bool", bytes([value])
    elif isinstance(value, int):
        dtype, data = "python_int", struct.pack("<Q", value & _UINT64)
    elif isinstance(value, float):
        dtype, data = "python_float", struct.pack("<d", value)
    else:
        dtype, data = "python_complex", struct.pack("<dd", value.real, value.imag)
    return DTYPES.index(dtype), data
