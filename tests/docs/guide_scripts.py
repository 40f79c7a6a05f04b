"""Running a script of docs/guides as its reader would, in an environment without this test's own variables."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SECONDS = 1100


def run_script(script: Path, programs: Path, work: Path, home: Path) -> tuple[int, str]:
    """The exit code and all output of `script` on the new folder `work`; `programs` is where it finds whet."""
    home.mkdir()
    env = {key: value for key, value in os.environ.items() if not key.startswith(("WHET_", "COV_", "PYTEST_"))}
    env |= {"PATH": f"{programs}{os.pathsep}{env['PATH']}", "HOME": str(home), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    output = home.with_name("output")
    with output.open("wb") as printed:
        process = subprocess.Popen(
            ["bash", str(script), str(work)],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=home.parent,
        )
        try:
            code = process.wait(SECONDS)
        finally:
            process.terminate()  # its trap stops what it started
            process.wait()
    return code, output.read_text(encoding="utf-8", errors="replace")
