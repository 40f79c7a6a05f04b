"""Which code imports `verifiers`, the 0.1 contract, rather than `whet`: what it may do that other code may not."""

from __future__ import annotations

import itertools
import sys
from types import FrameType

_importers: set[str] = set()


def is_written_for_verifiers(cls: type) -> bool:
    """Whether a class, or the code that constructs an instance of it, imports `verifiers` rather than `whet`.

    Constructors ask for it. Such code has read a name from a stand-in. All modules of its package count, including
    helpers to which it passes a class. The first frame outwards that is neither a constructor nor in the standard
    library decides.
    """
    frame: FrameType | None = sys._getframe(1)
    if any(_imports_verifiers(base.__module__) for base in cls.__mro__):
        return True
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if _imports_verifiers(module):
            return True
        constructor = frame.f_code.co_name == "__init__"
        if not constructor and module.partition(".")[0] not in sys.stdlib_module_names:
            return False
        frame = frame.f_back
    return False


def _imports_verifiers(module: str) -> bool:
    packages = itertools.accumulate(module.split("."), "{}.{}".format)
    return any(package in _importers for package in packages)


def note_importer(frame: FrameType) -> None:
    """Remember the package whose code reads a name from a stand-in, or its module if its folder is no package."""
    module, package = (str(frame.f_globals.get(name) or "") for name in ("__name__", "__package__"))
    is_package = getattr(sys.modules.get(package), "__file__", None) is not None
    importer = package if is_package else module
    if importer and importer.partition(".")[0] not in {*sys.stdlib_module_names, "whet"}:
        _importers.add(importer)
