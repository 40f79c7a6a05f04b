"""What whet uses of PEFT, without what PEFT imports of bitsandbytes wherever that is installed.

Layers in 4 or 8 bits are whet's own here (`packed_base.py`), so none of that library's are ever adapted: it and the
compiler of torch that it brings would take 41 MiB of every run with an adapter, and seconds of its start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import cast

LIBRARY = "bitsandbytes"


@contextmanager
def without_bitsandbytes() -> Iterator[None]:
    """For the length of the block Python does not find the library, unless it is imported already: None in
    `sys.modules` says so. What PEFT has found out about it is forgotten behind that, so other code is not affected."""
    if LIBRARY in sys.modules:
        yield
        return
    sys.modules[LIBRARY] = cast("ModuleType", None)
    try:
        yield
    finally:
        del sys.modules[LIBRARY]
        if (answers := sys.modules.get("peft.import_utils")) is not None:
            answers.is_bnb_available.cache_clear()
            answers.is_bnb_4bit_available.cache_clear()


with without_bitsandbytes():
    from peft import LoraConfig as PeftLoraConfig
    from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
    from peft.tuners.lora import LoraLayer
    from peft.utils import SAFETENSORS_WEIGHTS_NAME

__all__ = [
    "SAFETENSORS_WEIGHTS_NAME",
    "LoraLayer",
    "PeftLoraConfig",
    "get_peft_model",
    "get_peft_model_state_dict",
    "set_peft_model_state_dict",
    "without_bitsandbytes",
]
