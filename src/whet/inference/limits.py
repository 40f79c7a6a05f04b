"""What the embedded engine may take, and what it has done so far."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """`max_rows` decode together; the KV cache takes at most `kv_bytes` (default: a quarter of the device's memory)."""

    max_rows: int = 256
    kv_bytes: int | None = None
    max_context: int | None = None  # default: the model's own


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was made."""

    requests: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0  # prompt tokens computed
    reused_tokens: int = 0  # prompt tokens whose keys and values were there already
    decode_steps: int = 0


def device_memory(device: torch.device) -> int:
    """All memory of the device in bytes; not what is free, so that limits do not vary from run to run."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
