"""Which process a number means: numbers are used again, a number and the time its process began are not."""

from __future__ import annotations

import subprocess
from pathlib import Path


def began(pid: int) -> str | None:
    """When the process with this number began, in words that only ever equal themselves; None where there is none."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            after_name = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if after_name[0] == "Z" else after_name[19]
    listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip() or None
