"""The tables of what operators write, against the schemas of the torch that is installed."""

from __future__ import annotations

import pytest
import torch
import torch.distributed

from native_support import OLDEST
from opguard.capture.operators import C10D_WRITES, C10D_WRITES_NOTHING


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_every_c10d_operator_is_in_one_table() -> None:
    schemas = {
        schema.name.removeprefix("c10d::"): {argument.name for argument in schema.arguments}
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("c10d::")
    }
    later = {"check_for_nan"} if OLDEST else set()
    assert set(schemas) == (set(C10D_WRITES) | C10D_WRITES_NOTHING) - later
    assert not set(C10D_WRITES) & C10D_WRITES_NOTHING
    for name, writes in C10D_WRITES.items():
        assert {argument for argument, _ in writes} <= schemas[name], name
