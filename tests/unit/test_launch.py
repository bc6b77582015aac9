"""Which rank of which job a process is."""

import pytest

from opguard.errors import CaptureError
from opguard.store.launch import resolve_rank, resolve_run_id


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "", "WORLD_SIZE": ""}, (0, 1)),
        ({"WORLD_SIZE": "1"}, (0, 1)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, (1, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        # torchrun inside an srun step: the inner launcher speaks for the process
        (
            {
                "RANK": "5", "WORLD_SIZE": "6",
                "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0",
            },
            (5, 6),
        ),
    ],
)  # fmt: skip
def test_rank_and_world_size(environ, expected):
    assert resolve_rank(environ) == expected


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, "SLURM_PROCID"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK"),
        ({"RANK": "1"}, "WORLD_SIZE"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1'"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one'"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        ({"RANK": "0", "WORLD_SIZE": "٣"}, "WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "9" * 5000}, "WORLD_SIZE"),
    ],
)
def test_an_unknown_or_malformed_rank_is_an_error_and_never_rank_0(environ, named):
    with pytest.raises(CaptureError, match=named):
        resolve_rank(environ)


@pytest.mark.parametrize(
    ("environ", "world_size", "expected"),
    [
        ({}, 2, None),
        ({"TORCHELASTIC_RUN_ID": "job-7", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, 2, "job-7"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, 2, "a:1"),
        ({"MASTER_ADDR": "a"}, 2, None),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, 1, None),
        ({"TORCHELASTIC_RUN_ID": "job-7"}, 1, "job-7"),
    ],
)
def test_run_id(environ, world_size, expected):
    assert resolve_run_id(environ, world_size) == expected
