"""Runs with planted faults: bytes changed as they lie, or with every digest made right again."""

import io
import json
import zipfile
from pathlib import Path

from builders import EventBuilder, Record, write_run
from opguard.model import RecordFlag
from opguard.store.files import encode_object, sha256

REGIONS = (1, 2, 3, 4, 5, 6, 7, 8)
FILES = (
    "run.json",
    "rank-00000/open.json",
    "rank-00000/strings.jsonl",
    "rank-00000/chunks.jsonl",
    "rank-00000/chunk-000000.npz",
    "rank-00000/chunk-000001.npz",
    "rank-00000/regions-000001.npz",
    "rank-00000/close.json",
)
CHUNK = "rank-00000/chunk-000001.npz"


def build_events() -> EventBuilder:
    """Five events that use every column."""
    builder = EventBuilder()
    frames = [("train.py", 7, "step"), ("train.py", 40, "<module>")]
    (weight,) = builder.event("aten.randn.default", outputs=[Record("0", 0xFFFF_FFFF_FFFF_FFFF)])
    (hidden,) = builder.event(
        "aten.mm.default",
        module="Net.fc",
        step=2,
        arguments="alpha=1",
        stack=frames,
        inputs=[Record("self", 5, flags=RecordFlag.FRESH), Record("mat2", 6, producers=(weight,))],
        outputs=[Record("0", 7, dtype="bfloat16", shape="[2,2]", small=b"\x01\x02", xor32=9)],
    )
    builder.event(
        "aten._local_scalar_dense.default",
        inputs=[Record("self", 7, producers=(hidden,))],
        outputs=[Record("0", 1, dtype="python_float", shape="[]", strides="[]", small=b"8bytes!!")],
    )
    builder.event(
        "aten.add_.Tensor",
        phase="optimizer",
        module="Net",
        inputs=[Record("self", 6, producers=(weight,)), Record("other", 7, producers=(hidden,))],
        outputs=[Record("self!", 8, producers=(weight, hidden), regions=REGIONS)],
        stack=frames[1:],
    )
    builder.event("opguard.state", phase="other", outputs=[Record("0", 8, producers=(8,))], flags=2)
    return builder


def build_run(folder: Path, size: int = 3) -> Path:
    """A closed run of the five events."""
    return write_run(folder, build_events().chunks(size), summary={"exit_code": 0})


def edit_object(path: Path, line: int = 0, **changes: object) -> None:
    """Change members of a stored object (a value of ... takes one away); its digest fits again."""
    lines = path.read_bytes().splitlines(keepends=True)
    value = json.loads(lines[line])
    del value["digest"]
    value.update(changes)
    lines[line] = encode_object({k: v for k, v in value.items() if v is not ...})
    path.write_bytes(b"".join(lines))


def sign(folder: Path) -> None:
    """Make every digest of a closed rank fit its files, as a forger would."""
    rank = folder / "rank-00000"
    lines = []
    for text in (rank / "chunks.jsonl").read_text().splitlines():
        value = json.loads(text)
        del value["digest"]
        value |= _mark(rank / f"chunk-{value['chunk']:06d}.npz")
        if value["regions"]:
            value["regions"] = _mark(rank / f"regions-{value['chunk']:06d}.npz")
        lines.append(encode_object(value))
    (rank / "chunks.jsonl").write_bytes(b"".join(lines))
    sign_closing(folder)


def sign_closing(folder: Path) -> None:
    """Make ``close.json`` fit the other files."""
    rank = folder / "rank-00000"
    files = {
        p.name: sha256(p.read_bytes()) for p in sorted(rank.iterdir()) if p.name != "close.json"
    }
    edit_object(rank / "close.json", files=files)


def _mark(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": sha256(data)}


def replace_members(path: Path, method: int = zipfile.ZIP_STORED, **members: bytes | None) -> None:
    """Replace (None: remove) members of an archive, keeping the others."""
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    found |= {f"{name}.npy": data for name, data in members.items()}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, data in found.items():
            if data is not None:
                archive.writestr(name, data)
    path.write_bytes(target.getvalue())
