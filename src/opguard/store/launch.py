"""Which rank of which job this process is, read from what the launcher put in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opguard.errors import CaptureError

_LAUNCHERS: Final = (
    # rank, world size, and a variable without which the two are not this process's own
    ("RANK", "WORLD_SIZE", None),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", None),
    ("PMI_RANK", "PMI_SIZE", None),
)
_LARGEST_WORLD: Final = 1 << 20


def resolve_rank(environ: Mapping[str, str]) -> tuple[int, int]:
    """(rank, world size) by the first launcher that names either; (0, 1) without a launcher.

    ``SLURM_*`` counts inside a job step only: the batch script of a job sees the job's task
    count and is no task of it.

    Raises:
        CaptureError: a value is malformed, or a world over 1 comes without a rank.
    """
    for rank_name, world_name, needed in _LAUNCHERS:
        if needed is not None and needed not in environ:
            continue
        world = _number(environ, world_name)
        rank = _number(environ, rank_name)
        if world is None and rank is None:
            continue
        if world is None:
            raise CaptureError(f"{rank_name} is set and {world_name} is not: unknown world size")
        if not 1 <= world <= _LARGEST_WORLD:
            raise CaptureError(f"{world_name}={world} is no world size")
        if rank is None:
            if world > 1:
                raise CaptureError(f"{world_name}={world} and no {rank_name}: unknown rank")
            rank = 0
        if rank >= world:
            raise CaptureError(f"{rank_name}={rank} is not below {world_name}={world}")
        return rank, world
    return 0, 1


def resolve_run_id(environ: Mapping[str, str], world_size: int) -> str | None:
    """What all ranks of this job can know it by: the run id of torchrun, else the meeting point.

    None if there is neither: the run then gets a random id. ``none`` is what torchrun passes in
    every job that was given no id. One process alone meets nobody, whatever ``MASTER_ADDR`` says.
    """
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic not in {"", "none"}:
        return elastic
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return f"{address}:{port}" if world_size > 1 and address and port else None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST_WORLD))):
        raise CaptureError(f"{name}={text!r} is not a number")
    return int(text)
