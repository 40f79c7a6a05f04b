"""Which device a part computes on: what a config may say, whether that device is there, and what `auto` chooses.

Whether torch was built for a device, and whether its driver is there, is found without importing torch: a mistake is
reported at once, and a machine with CPUs alone never waits for torch to answer.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from whet.errors import ConfigError

DEVICE_PATTERN = r"^(auto|cpu|mps|cuda(:[0-9]+)?)$"
EngineDtype: TypeAlias = Literal["float32", "bfloat16", "packed", "nf4", "int8"]
DTYPE_HELP = (
    "Of a model run here: float32, bfloat16; packed: a GGUF file's matrices stay in its blocks; nf4, int8: layers of "
    "safetensors are quantised by bitsandbytes."
)
QUANTISED = ("nf4", "int8")
BLOCK_FORMS = ("packed", *QUANTISED)
"""Matrices are dequantised when they are multiplied with."""
DEVICE_HELP = "auto (cuda, then mps where it can, else cpu), cpu, cuda, cuda:N or mps."


def why_not_quantised(form: str, device: str) -> str | None:
    """Why matrices in nf4 or int8 cannot be computed with on a device; None where they can, and for other forms."""
    if form not in QUANTISED:
        return None
    if device.partition(":")[0] not in ("cpu", "cuda"):
        return f"{form} is computed with on a CPU or on CUDA, not on {device}"
    if find_spec("bitsandbytes") is None:
        return f"{form} needs the 'quantised' extra. Install it with: pip install 'whet[quantised]'"
    return None


def check_device(device: str, key: str) -> None:
    """Raise `ConfigError` for a name that is none, and for a device that is not there.

    `key` is where it was set, such as `[learner] device`.
    """
    if not re.fullmatch(DEVICE_PATTERN, device):
        raise ConfigError(f'{key} = "{device}" is no device. It is one of {DEVICE_HELP}')
    reason = why_missing(device)
    if reason is not None:
        raise ConfigError(f'{key} = "{device}": {reason}. Set it to "auto" or "cpu", or remove the key.')


def choose_device(device: str = "auto", key: str = "device") -> str:
    """The device as torch names it; for `auto` the fastest that is there. Raises what `check_device` raises."""
    if device == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if why_missing(name) is None)
    check_device(device, key)
    return device


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs that a process may use, as CUDA_VISIBLE_DEVICES names them; torch's `cuda:N` is the N-th.

    Read from the driver's management library where there is one: it starts no CUDA context, which would be lost to
    processes that are forked later, and does not depend on the torch that is installed.
    """
    there = _gpu_count()
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not there:
        return [str(index) for index in range(there)]
    names: list[str] = []
    for name in (part.strip() for part in chosen.split(",")):
        if not name or (re.fullmatch(r"-?[0-9]+", name) and not 0 <= int(name) < there):
            break  # as CUDA reads it: what comes after a device that does not exist is not there either
        names.append(name)
    return names


def only_gpus(gpus: Sequence[int]) -> dict[str, str]:
    """The variable by which a process sees these alone of `visible_gpus`, counted from 0; none where it is empty."""
    there = visible_gpus()
    return {"CUDA_VISIBLE_DEVICES": ",".join(there[gpu] for gpu in gpus)}


ALLOCATOR = "PYTORCH_ALLOC_CONF"
"""Settings of torch's allocator of GPU memory; `PYTORCH_CUDA_ALLOC_CONF` is its older name."""
EXPANDABLE = "expandable_segments:True"


def expand_segments(device: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Let blocks of GPU memory grow in place, for arrays of many lengths: fewer gaps. Has an effect before CUDA's first
    tensor; what the user has set stays."""
    if device.startswith("cuda") and not environ.get("PYTORCH_CUDA_ALLOC_CONF"):
        environ.setdefault(ALLOCATOR, EXPANDABLE)


def without_expanding(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without what `expand_segments` sets: vLLM's sleep mode refuses it."""
    return {name: value for name, value in environ.items() if (name, value) != (ALLOCATOR, EXPANDABLE)}


def _gpu_count() -> int:
    import ctypes

    for name in ("libnvidia-ml.so.1", "nvml.dll"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_uint(0)
        if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
            return count.value
    if not _built_for_cuda() or not _has_cuda_driver():
        return 0
    import torch

    return torch.cuda.device_count()


def why_missing(device: str) -> str | None:
    """Why this device cannot be used here; None where it can."""
    kind, _, number = device.partition(":")
    if kind == "cuda":
        return _cuda_missing(int(number or 0))
    return _mps_missing() if kind == "mps" else None


def _cuda_missing(number: int) -> str | None:
    if not _built_for_cuda():
        return "the torch that is installed was built without CUDA"
    if not _has_cuda_driver():
        return "this machine has no CUDA driver"
    import torch

    count = torch.cuda.device_count()
    if not count:
        return "torch finds no CUDA device here"
    if number >= count:
        return f"there {'is' if count == 1 else 'are'} {count} CUDA device{'s' * (count > 1)} here, counted from 0"
    return None


def _built_for_cuda() -> bool:
    """By torch's own file of its build; ROCm builds of torch call their devices cuda, too."""
    import ast

    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        tree = ast.parse(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return True  # torch itself will say
    built = (
        node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id in ("cuda", "hip")
        and isinstance(node.value, ast.Constant)
    )
    return any(built)


def _has_cuda_driver() -> bool:
    return any(map(_loads, ("libcuda.so.1", "libamdhip64.so")))


def _loads(library: str) -> bool:
    import ctypes  # ten milliseconds that a command without a model need not wait for

    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _mps_missing() -> str | None:
    import platform

    if sys.platform != "darwin" or platform.machine() != "arm64":
        return "mps is for Macs with Apple silicon"
    import torch

    if not torch.backends.mps.is_available():
        return "torch finds no MPS device here"
    try:  # operations of the learner that not every torch has on MPS
        probe = torch.ones(2, 2, device="mps")
        first = torch.zeros(1, dtype=torch.int64, device="mps")
        torch.nn.functional.embedding_bag(first, probe, first, mode="sum")
        torch.linalg.vecdot(probe, probe)
        torch.searchsorted(first, first)
    except (NotImplementedError, RuntimeError) as error:
        return f"this torch does not compute all of it on MPS ({str(error).splitlines()[0]})"
    return None
