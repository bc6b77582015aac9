from __future__ import annotations

from pathlib import Path

import pytest

from opguard.errors import UsageError
from opguard.policy import ENVIRONMENT_PARTS, Floors, IgnoreRule, Policy, load_policy
from opguard.store.environment_key import key_parts

WHOLE = """
strict_structure = true
allow_unpaired_state = true
allow_environment = ["torch", "numerics"]
[floors]
paired = 0.9
trailing = 0
[[ignore]]
op = "aten.item*"
reason = "timing"
[[ignore]]
module = "Net.drop"
slot = "0"
reason = "known"
"""


def load(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return load_policy(path)


def test_every_key_is_read(tmp_path: Path) -> None:
    assert load(tmp_path, WHOLE) == Policy(
        strict_structure=True,
        allow_unpaired_state=True,
        allow_environment=("torch", "numerics"),
        floors=Floors(0.9, 0.0),
        ignore=(
            IgnoreRule("timing", op="aten.item*"),
            IgnoreRule("known", module="Net.drop", slot="0"),
        ),
    )


def test_empty_is_the_default(tmp_path: Path) -> None:
    assert load(tmp_path, "") == Policy()
    assert Policy().floors == Floors(paired=0.5, trailing=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strict = true", "unknown key 'strict'"),
        ("[floors]\npair = 1", "floors: unknown key 'pair'"),
        ('[[ignore]]\noperator = "x"\nreason = "y"', r"ignore\[0\]: unknown key 'operator'"),
        ('[[ignore]]\nop = "x"', "needs a reason"),
        ('[[ignore]]\nreason = "x"', "needs op, module or slot"),
        ('[[ignore]]\nop = 3\nreason = "x"', "op is not a text"),
        ('[[ignore]]\nop = "x"\nreason = ""', "reason is not a text"),
        ("ignore = 3", "ignore is not an array"),
        ("ignore = [3]", r"ignore\[0\] is not a table"),
        ("floors = 3", "floors is not a table"),
        ('strict_structure = "yes"', "strict_structure is not true or false"),
        ("strict_structure = 1", "strict_structure is not true or false"),
        ("allow_environment = 'torch'", "allow_environment is not a list"),
        ("allow_environment = [1]", "allow_environment is not a list"),
        ("allow_environment = ['tourch']", "'tourch' is no part of the environment"),
        ("[floors]\npaired = 2", "paired is not a number from 0 to 1"),
        ("[floors]\npaired = nan", "paired is not a number from 0 to 1"),
        ("[floors]\npaired = true", "paired is not a number from 0 to 1"),
        ("[floors", "policy "),
    ],
)
def test_bad_policies_name_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(tmp_path, text)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_policy(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="directory"):
        load_policy(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="policy "):
        load_policy(tmp_path / "binary")


def test_rules_are_globs_and_case_counts() -> None:
    rule = IgnoreRule("r", op="aten.*", module="Net.[ab]", slot="?")
    assert rule.hits("aten.mm.default", "Net.a", "0")
    assert not rule.hits("Aten.mm.default", "Net.a", "0")
    assert not rule.hits("aten.mm.default", "Net.c", "0")
    assert not rule.hits("aten.mm.default", "Net.a", "10")


def test_the_parts_of_the_environment_are_those_of_the_key() -> None:
    cuda = {"device": "cuda", "cuda": {"devices": [{"sm": "90"}]}}
    names = {*key_parts({}, "native"), *key_parts(cuda, "native")}
    assert set(ENVIRONMENT_PARTS) == {*names, "numerics"}
