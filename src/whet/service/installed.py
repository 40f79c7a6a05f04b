"""What this Python has for runs: environments that are installed, and models by name."""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib import metadata
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from whet.envs.identity.ids import parse_id
from whet.envs.identity.record import identify
from whet.errors import ModelLoadError, WhetError
from whet.inference.model_names import PACKAGED, TINY, packaged_file


@cache
def installed_environments() -> dict[str, dict[str, Any]]:
    """By name: distributions that need whet and have a module of their own name."""
    found: dict[str, dict[str, Any]] = {}
    for distribution in metadata.distributions():
        name = canonicalize_name(distribution.name or "")
        if not name or name == "whet" or not _needs_whet(distribution):
            continue
        try:
            if importlib.util.find_spec(parse_id(name).module) is None:
                continue
            identity = identify(name)
        except (WhetError, ImportError, ValueError, OSError):
            continue
        found[name] = {"id": name, "version": identity.version or "", "content": identity.content}
    return found


def _needs_whet(distribution: metadata.Distribution) -> bool:
    for line in distribution.requires or []:
        try:
            if canonicalize_name(Requirement(line).name) == "whet":
                return True
        except InvalidRequirement:
            continue
    return False


def known_models() -> list[str]:
    """Models that need no download."""
    found = [TINY]
    for name in PACKAGED:
        try:
            packaged_file(name)
        except ModelLoadError:
            continue
        found.append(name)
    return found
