"""Where the files of whet/tiny are. Imports nothing heavy: base `whet`, without torch, may ask."""

from __future__ import annotations

from pathlib import Path

NAME = "whet/tiny"


def path() -> Path:
    """The directory that ships with the package: plain `transformers` loads it."""
    return Path(__file__).parent / "tiny"
