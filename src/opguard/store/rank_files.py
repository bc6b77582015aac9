"""The files of one rank while they are being written.

Order on disk, so that whatever a crash leaves can be read: a chunk's strings, its regions, its
columns (the latter two under a temporary name, made durable, then renamed), and last its line in
``chunks.jsonl``, which alone makes it count::

    {"chunk":0,"events":E,"records":R,"producers":P,"small":S,"strings":N,"bytes":…,"sha256":"…",
     "regions":null | {"bytes":…,"sha256":"…"},"digest":"…"}

``strings`` are the lines of ``strings.jsonl`` that the chunk brought; the rest are lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opguard.errors import CaptureError
from opguard.model import PendingChunk
from opguard.store.chunk_codec import check_chunk, encode_chunk, encode_regions
from opguard.store.files import LineFile, encode_object, sha256, write_atomic
from opguard.store.run_folder import (
    CHUNKS_FILE,
    CLOSE_FILE,
    OPEN_FILE,
    STRINGS_FILE,
    chunk_file_name,
    regions_file_name,
)


class RankFiles:
    """Publishes chunks into a rank's folder. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Open the two line files of a fresh rank folder.

        Raises:
            CaptureError: they cannot be opened.
        """
        self._folder = folder
        self.events = 0
        self._records = 0
        self._string_count = 0
        self._chunk_count = 0
        try:
            self._digests = {OPEN_FILE: sha256((folder / OPEN_FILE).read_bytes())}
            self._strings = LineFile(folder / STRINGS_FILE)
            self._chunks = LineFile(folder / CHUNKS_FILE)
        except OSError as error:
            raise CaptureError(f"cannot write to {folder}: {error.strerror}") from error

    def publish(self, pending: PendingChunk) -> None:
        """Build a chunk and write it so that it either counts whole or not at all.

        Raises:
            OSError: writing failed. ValueError: its columns do not fit together.
        """
        chunk = pending.build()
        check_chunk(chunk, pending.event_count)
        if not chunk.event_count and not chunk.strings:
            return
        number = self._chunk_count
        lines = [
            encode_object({"id": identity, "kind": kind, "value": value})
            for kind, identity, value in chunk.strings
        ]
        if lines:
            self._strings.append(b"".join(lines))
        regions = None
        if len(chunk.region_records):
            regions = self._put(regions_file_name(number), encode_regions(chunk))
        line = {
            "chunk": number,
            "events": chunk.event_count,
            "records": chunk.record_count,
            "producers": len(chunk.producers),
            "small": len(chunk.records["small"]),
            "strings": len(lines),
            **self._put(chunk_file_name(number), encode_chunk(chunk)),
            "regions": regions,
        }
        self._chunks.append(encode_object(line))
        self._chunk_count += 1
        self._records += chunk.record_count
        self._string_count += len(lines)
        self.events += chunk.event_count

    def _put(self, name: str, data: bytes) -> dict[str, Any]:
        write_atomic(self._folder / name, data)
        self._digests[name] = sha256(data)
        return {"bytes": len(data), "sha256": self._digests[name]}

    def close(self, summary: Mapping[str, Any], written: Mapping[str, int]) -> None:
        """Write ``close.json``: ``summary``, the counts, and the digests of the other files.

        Raises:
            OSError: writing failed. ValueError, TypeError: the summary is no JSON.
        """
        counts = {
            "events": self.events,
            "records": self._records,
            "strings": self._string_count,
            "chunks": self._chunk_count,
        }
        self._digests[STRINGS_FILE] = self._strings.digest
        self._digests[CHUNKS_FILE] = self._chunks.digest
        files = dict(sorted(self._digests.items()))
        closing = {**summary, "written": {**counts, **written}, "files": files}
        write_atomic(self._folder / CLOSE_FILE, encode_object(closing))

    def release(self) -> None:
        """Close the open files."""
        self._strings.close()
        self._chunks.close()
