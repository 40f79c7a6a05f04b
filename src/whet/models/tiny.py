"""The path of the files of whet/tiny. Imports nothing heavy, so that base `whet` can use it without torch."""

from __future__ import annotations

from pathlib import Path

NAME = "whet/tiny"


def path() -> Path:
    """The directory that ships with the package: plain `transformers` loads it."""
    return Path(__file__).parent / "tiny"
