"""What goes to the clipboard of the person's terminal (OSC 52), and when it cannot."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

LONGEST = 74_994
"""Characters of base64 that terminals take at most: xterm's limit, which others have copied."""
WITHOUT = {"linux", "dumb", "vt100", "vt220"}
"""Values of TERM of terminals that have no clipboard."""


def why_not(text: str, environment: Mapping[str, str]) -> str | None:
    """Why this text cannot be sent to the clipboard of this terminal; None where it can."""
    if environment.get("TERM", "") in WITHOUT or environment.get("TERM_PROGRAM") == "Apple_Terminal":
        return "this terminal has no clipboard for programs"
    if len(base64.b64encode(text.encode("utf-8", "replace"))) > LONGEST:
        return "too long for a terminal's clipboard"
    return None


def save_instead(text: str, suffix: str = ".md") -> Path:
    """A new file, for nobody else to read, with the text."""
    descriptor, name = tempfile.mkstemp(prefix="whet-", suffix=suffix)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Path(name)
