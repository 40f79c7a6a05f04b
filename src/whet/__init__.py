"""whet: sharpen language models on environments.

The public names are imported when they are first used, so that `import whet` is quick and loads no torch. The stub
`__init__.pyi` says where each is defined.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
"""The version of whet that is installed."""


def _exports() -> dict[str, str]:
    """The module of each public name, from the stub's lines `from MODULE import NAME as NAME`."""
    with open(f"{__file__}i", encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in lines}


_MODULE_OF = _exports()

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        import difflib

        near = difflib.get_close_matches(name, _MODULE_OF, n=1)
        hint = f". Did you mean '{near[0]}'?" if near else ""
        raise AttributeError(f"whet {__version__} has no name '{name}'{hint}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
