"""Modules of the run's machine that an import path in the config leads to, on nodes that do not have them.

the run: local_sources("my_losses:mine") ─▶ sources by module ─▶ a rank's actor: import_from(sources)
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

INSTALLED = tuple(sysconfig.get_path(kind) + "/" for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


class ModuleSource(NamedTuple):
    """One module."""

    text: str
    is_package: bool


def local_sources(import_path: str) -> dict[str, ModuleSource]:
    """The loaded modules that lie with the one of `module:name`, by name; none for one that is installed, or whet's."""
    name, colon, _ = import_path.partition(":")
    top = sys.modules.get(name.partition(".")[0])
    if not colon or top is None or _file(top) is None:
        return {}
    sources, folder = {}, _folder(top)
    for other, module in list(sys.modules.items()):
        file = _file(module)
        first = sys.modules.get(other.partition(".")[0])
        if file is not None and first is not None and _folder(first) == folder:
            sources[other] = ModuleSource(file.read_text(encoding="utf-8"), file.name == "__init__.py")
    return sources


def import_from(sources: Mapping[str, ModuleSource]) -> None:
    """Have this process import these modules from here, and not from its own folders."""
    if sources:
        sys.meta_path.insert(0, _Shipped(sources))


class _Shipped(MetaPathFinder, InspectLoader):
    def __init__(self, sources: Mapping[str, ModuleSource]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in self._sources else None

    def is_package(self, fullname: str) -> bool:
        return self._sources[fullname].is_package

    def get_source(self, fullname: str) -> str:
        return self._sources[fullname].text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_source(fullname), f"{fullname}, of the run", "exec", dont_inherit=True)


def _file(module: ModuleType) -> Path | None:
    """Of a module that is neither installed nor whet's; None of another."""
    name = getattr(module, "__file__", None)
    if name is None or not name.endswith(".py") or module.__name__.partition(".")[0] in ("whet", "__main__"):
        return None
    return None if name.startswith(INSTALLED) else Path(name)


def _folder(top: ModuleType) -> Path | None:
    """Where a module or package of the first level lies."""
    file = _file(top)
    if file is None:
        return None
    return file.parent.parent if file.name == "__init__.py" else file.parent
