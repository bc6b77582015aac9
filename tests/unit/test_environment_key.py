"""Environment keys, and where two environments differ."""

import pytest

from opguard.store.environment_key import (
    compare_environments,
    environment_key,
    flat_facts,
    key_parts,
)

CPU = {
    "platform": "linux",
    "architecture": "x86_64",
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "cpu_capability": "AVX512",
    "device": "cpu",
    "cuda": None,
    "variables": {"OMP_NUM_THREADS": "1"},
}
H200 = {"name": "NVIDIA H200", "sm": "9.0"}
CUDA = {**CPU, "torch": "2.13.0+cu130", "device": "cuda", "cuda": {"devices": [H200, H200]}}


def side(facts=CPU, mechanism="dispatch", **probe):
    return {"environment": facts, "mechanism": mechanism, "probe": probe}


@pytest.mark.parametrize(
    ("facts", "mechanism", "key"),
    [
        (CPU, "dispatch", "linux-x86_64-torch2.13.0_cpu-cpu-AVX512-dispatch"),
        (CUDA, "native", "linux-x86_64-torch2.13.0_cu130-cuda-2xsm9.0-native"),
        (
            {**CPU, "platform": "../etc", "cpu_capability": "a b\n"},
            "native",
            ".._etc-x86_64-torch2.13.0_cpu-cpu-a_b_-native",
        ),
        ({}, "native", "unknown-unknown-torchunknown-cpu-unknown-native"),
    ],
)
def test_the_key_is_readable_and_a_plain_file_name(facts, mechanism, key):
    assert environment_key(facts, mechanism) == key


def test_the_parts_are_named_as_a_policy_names_them():
    assert list(key_parts(CPU, "native")) == [
        "platform", "architecture", "torch", "device", "cpu_capability", "mechanism",
    ]  # fmt: skip
    assert list(key_parts(CUDA, "native"))[-2:] == ["devices", "mechanism"]


def test_equal_sides_differ_in_nothing():
    assert compare_environments(side(mm="1"), side(mm="1")) == ((), (), ())


@pytest.mark.parametrize(
    ("changes", "key", "facts"),
    [
        ({"torch": "2.12.0+cpu"}, ("torch",), ()),
        ({"cpu_capability": "AVX2"}, ("cpu_capability",), ()),
        ({"architecture": "aarch64"}, ("architecture",), ()),
        ({"python": "3.12.1"}, (), ("python",)),
        ({"variables": {"OMP_NUM_THREADS": "2"}}, (), ("OMP_NUM_THREADS",)),
        ({"variables": {}}, (), ("OMP_NUM_THREADS",)),
        ({"numpy": "2.0"}, (), ("numpy",)),
    ],
)
def test_what_differs_is_named(changes, key, facts):
    found = compare_environments(side(), side({**CPU, **changes}))
    assert found == (key, (), facts)


def test_mechanism_and_devices_are_parts_of_the_key():
    assert compare_environments(side(), side(mechanism="native")).key == ("mechanism",)
    one = {**CUDA, "cuda": {"devices": [H200]}}
    assert compare_environments(side(CUDA), side(one)) == (("devices",), (), ("cuda",))
    assert compare_environments(side(CPU), side(CUDA)).key == (
        "torch", "device", "cpu_capability", "devices",
    )  # fmt: skip


def test_the_probe_compares_what_both_sides_ran():
    found = compare_environments(
        side(mm="1", exp="2", log="3"), side(mm="1", exp="9", log="9", **{"cuda.mm": "4"})
    )
    assert found.probe == ("exp", "log")


def test_sides_that_lack_everything_can_be_compared():
    assert compare_environments({}, {}) == ((), (), ())


def test_flat_facts_show_variables_by_their_own_names():
    flat = flat_facts(CPU)
    assert flat["OMP_NUM_THREADS"] == "1"
    assert "variables" not in flat
