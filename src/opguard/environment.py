"""What a run's numbers depend on: facts about the machine and torch, and a numerics probe.

torch is imported inside functions: reading the command line or the variables needs none.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch import Tensor

VARIABLES: Final = re.compile(
    "(?:OMP|MKL|ONEDNN|ATEN|CUBLAS|NCCL|TORCH|OPGUARD)_.*|CUDA_VISIBLE_DEVICES"
)
"""The environment variables that are stored; no other leaves the machine."""
MASK: Final = "***"

_SECRET: Final = re.compile("--[^=]*(?:token|key|password)[^=]*", re.IGNORECASE)
_SECRET_NAME: Final = re.compile("token|key|password", re.IGNORECASE)
_LIBRARY_LINES: Final = {
    "mkl": re.compile(r"Math Kernel Library Version (\S+)"),
    "onednn": re.compile(r"MKL-DNN (v\S+)"),
}
_FLAGS: Final = (
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.mkldnn.deterministic",
    "backends.mkldnn.enabled",
    "utils.deterministic.fill_uninitialized_memory",
)
_PRECISIONS: Final = (
    "backends.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
)
_OLDER_PRECISIONS: Final = ("backends.cuda.matmul.allow_tf32", "backends.cudnn.allow_tf32")
"""Where the former do not exist; where they do, reading these can raise."""


def mask_command(command: Sequence[str]) -> list[str]:
    """``command`` with the values of ``--*token*``, ``--*key*``, ``--*password*`` masked.

    Both forms, ``--x=value`` and ``--x value``; the home folder is shown as ``~``.
    """
    shown = []
    secret = False
    for argument in command:
        name, equals, _ = argument.partition("=")
        is_secret = _SECRET.fullmatch(name) is not None
        if secret and not argument.startswith("--"):
            shown.append(MASK)
        elif is_secret and equals:
            shown.append(f"{name}={MASK}")
        else:
            shown.append(without_home(argument))
        secret = is_secret and not equals
    return shown


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``environ`` that are stored, in order; secrets masked, home as ``~``."""
    return {
        name: MASK if _SECRET_NAME.search(name) else without_home(value)
        for name, value in sorted(environ.items())
        if VARIABLES.fullmatch(name)
    }


def without_home(text: str) -> str:
    """``text`` with the user's home folder written as ``~``."""
    home = os.path.expanduser("~")
    if len(home) <= 1:
        return text
    return re.sub(re.escape(home) + r"(?![\w.-])", "~", text)


def facts() -> dict[str, Any]:
    """Facts about this process, JSON values only. Initialises no device and starts no thread."""
    import numpy as np
    import torch

    build = torch.__config__.show()
    libraries = {
        name: found[1] for name, line in _LIBRARY_LINES.items() if (found := line.search(build))
    }
    return {
        "platform": sys.platform,
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torch_build": hashlib.sha256(build.encode()).hexdigest()[:16],
        "numpy": np.__version__,
        **libraries,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "intra_op_threads": torch.get_num_threads(),
        "inter_op_threads": torch.get_num_interop_threads(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic_algorithms": torch.get_deterministic_debug_mode(),
        **_torch_flags(),
        "device": "cuda" if _cuda_is_initialised() else "cpu",
        "cuda": _cuda_facts(),
        "variables": variables(os.environ),
    }


def _torch_flags() -> dict[str, Any]:
    import torch

    names = list(_FLAGS)
    flags: dict[str, Any] = {}
    if hasattr(torch.backends, "fp32_precision"):
        names += _PRECISIONS
    else:
        names += _OLDER_PRECISIONS
        flags["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    for name in names:
        value: Any = torch
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is not None:
            flags[name] = value
    return flags


def _cuda_is_initialised() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())


def _cuda_facts() -> dict[str, Any] | None:
    """None unless the program has initialised CUDA already."""
    import torch

    if not _cuda_is_initialised():
        return None
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {
        "runtime": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "devices": [
            {"name": device.name, "sm": f"{device.major}.{device.minor}"} for device in properties
        ],
    }


def numerics_probe() -> dict[str, str]:
    """Fingerprint 30 fixed operators: ``{"mm": "<mix64 in hex>", …}``; on CUDA ``cuda.mm``, ….

    An operator that this build lacks has ``raised <type>`` in place of its fingerprint.

    Machines that agree here can be expected to compute the same bits. It runs on a thread of its
    own, where no mode, autocast, inference mode or default device of the caller is in force, and
    with one intra-op thread; random states, thread counts and devices stay as they are.
    """
    import torch

    devices = ["cpu"]
    if _cuda_is_initialised() and not torch.cuda.is_current_stream_capturing():
        devices.append("cuda")
    results: dict[str, str] = {}
    errors: list[BaseException] = []

    def probe() -> None:
        try:
            with torch.no_grad():
                _on_one_thread(lambda: results.update(_probe_devices(devices)))
        except BaseException as error:  # noqa: BLE001  (raised again on the caller's thread)
            errors.append(error)

    thread = threading.Thread(target=probe, name="opguard-probe")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results


def _on_one_thread(work: Callable[[], None]) -> None:
    """Run ``work`` with one intra-op thread; for a thread that ends soon afterwards.

    ``torch.set_num_threads`` is the last resort: it also turns off MKL's dynamic choice of
    threads, for the whole process and for good, and with it may change the program's bits.
    OpenMP's own call and MKL's local one concern the calling thread alone.
    """
    import torch

    threads = torch.get_num_threads()  # also makes torch set up this thread, once
    if threads > 1:
        libraries = ctypes.CDLL(torch._C.__file__)
        for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"):
            if hasattr(libraries, name):
                getattr(libraries, name)(ctypes.c_int(1))
    if torch.get_num_threads() == 1:
        work()
        return
    torch.set_num_threads(1)
    try:
        work()
    finally:
        torch.set_num_threads(threads)


def _probe_devices(devices: Sequence[str]) -> dict[str, str]:
    import torch

    from opguard.fingerprint.spec import mix64

    results = {}
    for device in devices:
        prefix = "" if device == "cpu" else f"{device}."
        for name, operator in _operators(device).items():
            try:
                flat = operator().cpu().contiguous().flatten()
            except RuntimeError as error:  # this build lacks it: that is an answer, too
                results[prefix + name] = f"raised {type(error).__name__}"
                continue
            results[prefix + name] = f"{mix64(flat.view(torch.uint8).numpy()):016x}"
    return results


def _values(*shape: int, device: str, seed: int) -> Tensor:
    """float32 in [-2, 2) with 23 significant bits, by integer arithmetic: no random state."""
    import torch

    count = math.prod(shape)
    numbers = torch.arange(count, dtype=torch.int64, device=device)
    numbers = (numbers * 1_640_531 + seed * 7_368_787) % 8_388_593 - (1 << 22)
    return (numbers.to(torch.float32) / (1 << 21)).reshape(shape)


def _operators(device: str) -> dict[str, Callable[[], Tensor]]:
    """The probe: operators whose bits depend on libraries, instruction sets and their settings.

    All are deterministic on every device, so scans and scatters are left out.
    """
    import torch
    import torch.nn.functional as f

    values = functools.partial(_values, device=device)
    a, b = values(192, 192, seed=1), values(192, 192, seed=2)
    thin, vector = values(33, 129, seed=3), values(192, seed=4)
    batches = values(6, 48, 40, seed=5)
    image, kernel = values(2, 8, 20, 20, seed=6), values(16, 8, 3, 3, seed=7)
    grouped = values(8, 1, 3, 3, seed=8)
    flat = values(20_011, seed=9)
    rows, scale = values(64, 96, seed=10), values(96, seed=11)
    query, key, value = (values(2, 4, 32, 16, seed=seed) for seed in (12, 13, 14))
    positive = flat.abs() + 0.001
    attention = f.scaled_dot_product_attention
    return {
        "mm": lambda: a @ b,
        "mm_thin": lambda: thin @ values(129, 17, seed=15),
        "mm_transposed": lambda: a.t() @ b.t(),
        "mm_float64": lambda: a.double() @ b.double(),
        "mm_bfloat16": lambda: a.bfloat16() @ b.bfloat16(),
        "addmm": lambda: torch.addmm(vector, a, b),
        "mv": lambda: torch.mv(a, vector),
        "bmm": lambda: torch.bmm(batches, batches.transpose(1, 2)),
        "conv2d": lambda: f.conv2d(image, kernel, padding=1),
        "conv2d_grouped": lambda: f.conv2d(image, grouped, stride=2, groups=8),
        "conv_transpose2d": lambda: f.conv_transpose2d(image, kernel.transpose(0, 1), stride=2),
        "sum": flat.sum,
        "mean": lambda: a.mean(0),
        "var": lambda: rows.var(1),
        "norm": flat.norm,
        "logsumexp": lambda: rows.logsumexp(1),
        "softmax": lambda: rows.softmax(1),
        "layer_norm": lambda: f.layer_norm(rows, (96,), scale),
        "group_norm": lambda: f.group_norm(image, 4),
        "batch_norm": lambda: f.batch_norm(image, None, None, training=True),
        "attention": lambda: attention(query, key, value),
        "attention_causal": lambda: attention(query, key, value, is_causal=True),
        "exp": flat.exp,
        "log": positive.log,
        "tanh": flat.tanh,
        "erf": flat.erf,
        "sin": (flat * 50).sin,
        "pow": lambda: positive.pow(1.7),
        "rsqrt": positive.rsqrt,
        "gelu": lambda: f.gelu(rows),
    }
