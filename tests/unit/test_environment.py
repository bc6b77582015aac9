"""Facts, masking, and the numerics probe, which must leave no trace in the program."""

import json
import os
import platform
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from opguard import environment
from opguard.environment import facts, mask_command, numerics_probe, variables, without_home
from opguard.fingerprint.spec import mix64


def run_python(program, **environ):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["train.py", "--lr", "3"], ["train.py", "--lr", "3"]),
        (["a", "--hf-token", "s3cret", "x"], ["a", "--hf-token", "***", "x"]),
        (["a", "--API_KEY=s3=cret", "x"], ["a", "--API_KEY=***", "x"]),
        (["a", "--db-password", "-x"], ["a", "--db-password", "***"]),
        (["a", "--use-keys", "--lr", "3"], ["a", "--use-keys", "--lr", "3"]),
        (["a", "--token-a", "s", "--token-b", "t"], ["a", "--token-a", "***", "--token-b", "***"]),
        (["a", "--name=my-token"], ["a", "--name=my-token"]),
        (["a", "--token"], ["a", "--token"]),
        (["/home/ann/x.py", "--out=/home/ann"], ["~/x.py", "--out=~"]),
        (["/home/anna/x.py"], ["/home/anna/x.py"]),
    ],
)
def test_the_command_is_stored_without_secrets(monkeypatch, command, shown):
    monkeypatch.setenv("HOME", "/home/ann")
    assert mask_command(command) == shown


@pytest.mark.parametrize("home", ["", "/"])
def test_a_home_that_is_no_folder_of_its_own_is_not_replaced(monkeypatch, home):
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(os.path, "expanduser", lambda _path: home)
    assert without_home("/srv/x") == "/srv/x"


def test_only_listed_variables_are_stored(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    environ = {
        "OMP_NUM_THREADS": "4",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUDA_VISIBLE_DEVICES": "0",
        "TORCH_HOME": "/home/ann/.cache",
        "TORCH_HUB_TOKEN": "s3cret",
        "CUDA_VISIBLE_DEVICES_OLD": "1",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "PATH": "/usr/bin",
        "MY_OMP_X": "1",
    }
    assert variables(environ) == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "4",
        "TORCH_HOME": "~/.cache",
        "TORCH_HUB_TOKEN": "***",
    }


def test_importing_it_imports_neither_torch_nor_numpy():
    run_python("import sys, opguard.environment\nassert not {'torch', 'numpy'} & set(sys.modules)")


def test_facts_are_json_and_say_what_torch_says(monkeypatch):
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    found = json.loads(json.dumps(facts()))
    assert found["torch"] == torch.__version__
    assert found["numpy"] == np.__version__
    assert found["platform"] == sys.platform
    assert found["architecture"] == platform.machine()
    assert found["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["intra_op_threads"] == torch.get_num_threads()
    assert (found["device"], found["cuda"]) == ("cpu", None)
    assert found["variables"]["OMP_SCHEDULE"] == "static"
    assert not torch.cuda.is_initialized()


def test_facts_follow_the_settings():
    program = (
        "import torch\n"
        "from opguard.environment import facts\n"
        "before = facts()\n"
        "torch.use_deterministic_algorithms(True)\n"
        "torch.set_default_dtype(torch.float64)\n"
        "torch.backends.mkldnn.enabled = False\n"
        "torch.set_num_interop_threads(3)\n"  # raises once torch has started its threads
        "after = facts()\n"
        "print(sorted(n for n in after if after[n] != before[n]))\n"
    )
    assert run_python(program).strip() == str(
        ["backends.mkldnn.enabled", "default_dtype", "deterministic_algorithms", "inter_op_threads"]
    )


def test_mixed_precision_settings_do_not_make_facts_raise():
    program = (
        "import torch\n"
        "from opguard.environment import facts\n"
        "if hasattr(torch.backends, 'fp32_precision'):\n"
        "    torch.backends.fp32_precision = 'ieee'\n"
        "    torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
        "    assert facts()['backends.cuda.matmul.fp32_precision'] == 'tf32'\n"
        "else:\n"
        "    torch.backends.cuda.matmul.allow_tf32 = True\n"
        "    assert facts()['backends.cuda.matmul.allow_tf32'] is True\n"
    )
    run_python(program)


def expected_values(count, seed):
    numbers = [(i * 1_640_531 + seed * 7_368_787) % 8_388_593 - 2**22 for i in range(count)]
    return torch.tensor(numbers, dtype=torch.float64).div(2**21).float()


def test_the_probe_fingerprints_what_it_says():
    values = expected_values(20_011, seed=9)
    assert values.min() < -1.99
    assert values.max() > 1.99
    result = numerics_probe()
    assert len(result) == 30
    assert result["exp"] == f"{mix64(values.exp().numpy().view(np.uint8)):016x}"
    assert len(set(result.values())) == 30


def test_the_probe_sees_no_mode_and_no_mode_sees_it():
    plain = numerics_probe()
    seen = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Dispatch(), Function(), torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        seen.clear()
        assert numerics_probe() == plain
        assert seen == []
    with torch.inference_mode():
        assert numerics_probe() == plain
    torch.set_default_dtype(torch.float64)
    try:
        assert numerics_probe() == plain
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_probe_touches_no_random_state():
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    numerics_probe()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]


PROBE = """
import ctypes, json, threading, torch
library = ctypes.CDLL(torch._C.__file__)
def dynamic():
    return library.mkl_serv_get_dynamic() if hasattr(library, "mkl_serv_get_dynamic") else None
{before}
from opguard.environment import numerics_probe
state = (torch.get_num_threads(), dynamic(), threading.active_count())
result = numerics_probe()
assert (torch.get_num_threads(), dynamic(), threading.active_count()) == state, dynamic()
print(json.dumps(result))
"""


def test_the_probe_does_not_depend_on_thread_counts_and_leaves_them():
    outputs = {
        run_python(PROBE.format(before=before), OMP_NUM_THREADS=threads)
        for threads, before in (("1", ""), ("3", ""), ("3", "torch.set_num_threads(2)"))
    }
    assert len(outputs) == 1


def test_where_openmp_cannot_be_reached_the_count_is_set_and_restored():
    before = "ctypes.CDLL = lambda _path: object()\nlibrary = None"
    found = run_python(PROBE.format(before=before), OMP_NUM_THREADS="3")
    assert found == run_python(PROBE.format(before=""), OMP_NUM_THREADS="1")


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="there is no lesser capability"
)
def test_another_instruction_set_shows_in_the_probe():
    found = json.loads(run_python(PROBE.format(before=""), ATEN_CPU_CAPABILITY="default"))
    here = numerics_probe()
    assert found.keys() == here.keys()
    assert {name for name in here if found[name] != here[name]} >= {"softmax", "layer_norm"}


def test_an_operator_that_the_build_lacks_is_an_answer(monkeypatch):
    def lacking():
        raise RuntimeError("not implemented")

    monkeypatch.setattr(environment, "_operators", lambda _device: {"mm": lacking})
    assert numerics_probe() == {"mm": "raised RuntimeError"}


def test_a_defect_of_the_probe_is_not_hidden(monkeypatch):
    monkeypatch.setattr(environment, "_operators", lambda _device: {"mm": lambda: 1 / 0})
    with pytest.raises(ZeroDivisionError):
        numerics_probe()
