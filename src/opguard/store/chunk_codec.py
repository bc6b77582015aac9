"""A chunk's columns as the bytes of an ``.npz`` archive, and back.

``chunk-NNNNNN.npz`` is a zip archive without compression; each member is one ``.npy`` file of
format 1.0, little-endian, one-dimensional, C order, no objects::

    <event column>.npy   8 members, E values each       (model.EVENT_COLUMNS)
    <record column>.npy  9 members, R values each, and ``small`` with S bytes (RECORD_COLUMNS)
    producers.npy        P values, u4

``regions-NNNNNN.npz`` holds ``region_records.npy`` (u4, G) and ``region_values.npy`` (u8, G x 8).
``numpy.load`` reads both. The reader here takes nothing on trust: a member is looked at only if it
is stored as it is, so that it cannot claim more bytes than the archive has.
"""

from __future__ import annotations

import functools
import io
import struct
import tokenize
import zipfile
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from opguard.errors import FormatError
from opguard.model import EVENT_COLUMNS, RECORD_COLUMNS, Chunk

Columns: TypeAlias = Mapping[str, npt.NDArray[Any]]

REGIONS: Final = 8
CHUNK_COLUMNS: Final[Mapping[str, str]] = {**EVENT_COLUMNS, **RECORD_COLUMNS, "producers": "<u4"}
REGION_COLUMNS: Final[Mapping[str, str]] = {"region_records": "<u4", "region_values": "<u8"}

EVENT_BYTES: Final = sum(np.dtype(code).itemsize for code in EVENT_COLUMNS.values())
RECORD_BYTES: Final = sum(
    np.dtype(code).itemsize for name, code in RECORD_COLUMNS.items() if name != "small"
)

_DAMAGE: Final = (
    ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, RuntimeError,
    NotImplementedError, SyntaxError, MemoryError, struct.error, tokenize.TokenError,
    zipfile.BadZipFile,
)  # fmt: skip
"""What ``zipfile`` and the ``.npy`` header parser raise on bytes that are no such file."""


def check_chunk(chunk: Chunk, event_count: int) -> None:
    """Refuse a chunk whose columns do not fit together, before anything of it is written.

    Raises:
        ValueError: naming the column; capture has a defect.
    """
    lengths = dict.fromkeys(EVENT_COLUMNS, event_count)
    lengths |= dict.fromkeys(RECORD_COLUMNS, chunk.record_count)
    del lengths["small"]
    columns = _columns(chunk)
    for name, code in CHUNK_COLUMNS.items():
        column = columns[name]
        if column.dtype != np.dtype(code) or column.ndim != 1:
            raise ValueError(f"column {name} is {column.dtype} with {column.ndim} dimensions")
        if len(column) != lengths.get(name, len(column)):
            raise ValueError(f"column {name} has {len(column)} values, not {lengths[name]}")
    if chunk.region_values.shape != (len(chunk.region_records), REGIONS):
        raise ValueError(f"region_values has shape {chunk.region_values.shape}")


def _columns(chunk: Chunk) -> Columns:
    return {**chunk.events, **chunk.records, "producers": chunk.producers}


def encode_chunk(chunk: Chunk) -> bytes:
    """The bytes of ``chunk-NNNNNN.npz``."""
    return _encode(_columns(chunk), CHUNK_COLUMNS)


def encode_regions(chunk: Chunk) -> bytes:
    """The bytes of ``regions-NNNNNN.npz``."""
    columns: Columns = {
        "region_records": chunk.region_records,
        "region_values": chunk.region_values,
    }
    return _encode(columns, REGION_COLUMNS)


def _encode(columns: Columns, codes: Mapping[str, str]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, code in codes.items():
            member = io.BytesIO()
            values = np.ascontiguousarray(columns[name], dtype=code)
            np.lib.format.write_array(member, values, version=(1, 0), allow_pickle=False)
            # A ZipInfo of its own has a fixed date: equal chunks are equal files.
            archive.writestr(zipfile.ZipInfo(name + ".npy"), member.getbuffer())
    return target.getvalue()


def decode_chunk(data: bytes, where: str) -> dict[str, npt.NDArray[Any]]:
    """The columns of ``chunk-NNNNNN.npz``, as read-only views of ``data``.

    Raises:
        FormatError: naming ``where`` and the member that is missing, foreign or damaged.
    """
    return _decode(data, CHUNK_COLUMNS, where)


def decode_regions(data: bytes, where: str) -> dict[str, npt.NDArray[Any]]:
    """The two columns of ``regions-NNNNNN.npz``. Raises FormatError as decode_chunk does."""
    columns = _decode(data, REGION_COLUMNS, where)
    if columns["region_values"].shape != (len(columns["region_records"]), REGIONS):
        raise FormatError(f"{where}: region_values has shape {columns['region_values'].shape}")
    return columns


def _decode(data: bytes, codes: Mapping[str, str], where: str) -> dict[str, npt.NDArray[Any]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if sorted(info.filename for info in members) != sorted(f"{n}.npy" for n in codes):
                raise FormatError(f"{where}: its members are not the columns of this format")
            columns = {}
            for info in members:
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(data):
                    raise FormatError(
                        f"{where}: {info.filename} claims {info.file_size} bytes"
                        f" in an archive of {len(data)}"
                    )
                name = info.filename.removesuffix(".npy")
                columns[name] = _array(archive.read(info), name, codes[name], where)
    except _DAMAGE as error:
        raise FormatError(f"{where}: no valid archive of columns: {error}") from None
    return columns


def _array(data: bytes, name: str, code: str, where: str) -> npt.NDArray[Any]:
    header_length = int.from_bytes(data[8:10], "little") + 10
    shape, fortran, dtype = _parse_header(data[:header_length])
    dimensions = 2 if name == "region_values" else 1
    fits = dtype == np.dtype(code) and len(shape) == dimensions and min(shape) >= 0
    if not fits or (fortran and dimensions > 1):
        raise FormatError(f"{where}: column {name} is {dtype} with shape {shape}, not {code}")
    values = np.frombuffer(data, np.dtype(code), offset=header_length)
    return values.reshape(shape)


@functools.lru_cache(maxsize=64)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype of a ``.npy`` header; full chunks share most of theirs."""
    stream = io.BytesIO(header)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("not a .npy file of format 1.0")
    return np.lib.format.read_array_header_1_0(stream)
