"""The terminal viewer on a large results file: how soon there is something to see, and how it answers after that.

    python benchmarks/viewer.py [--rollouts 200000] [--size 1000000000] [--folder FOLDER] [--json]

Makes a file of that size in a temporary folder, and removes it afterwards. Each part is measured in a process of its
own: `cold` opens it without an index, the file not in memory; `build` indexes it aside while it polls as the viewer
does; `warm` opens it with the index, then lists, reads and searches; `screen` is the command on a pseudo-terminal,
from its start to the first row on the screen and from a key to the screen that shows it, without and with the index.
Memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _viewer_file import make_evaluation

HERE = Path(__file__).parent
PARTS = ("cold", "build", "warm", "screen cold", "screen warm")


def measure(part: str, results: Path) -> dict[str, float]:
    side = "_viewer_screen.py" if part.startswith("screen") else "_viewer_side.py"
    done = subprocess.run(
        [sys.executable, str(HERE / side), part.split()[-1], str(results)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{part} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def report(part: str, figures: dict[str, float]) -> None:
    print(f"\n{part}")
    for name, value in figures.items():
        words = name.split("_")
        if words[-1] == "s" and words[-2] != "per":
            shown, unit = (f"{value:.2f}", "s") if value >= 1 else (f"{value * 1000:.0f}", "ms")
        elif name.endswith("_mb_per_s"):
            shown, unit = f"{value:.0f}", "MB/s"
        elif words[-1] == "mib":
            shown, unit = f"{value:.0f}", "MiB"
        else:
            shown, unit = f"{value:,.0f}", ""
        label = name.removesuffix("_s").removesuffix("_mb_per").removesuffix("_mib").replace("_", " ")
        print(f"  {label:<34} {shown:>8} {unit}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=200_000, help="rollouts in the file")
    parser.add_argument("--size", type=int, default=1_000_000_000, help="bytes of the file")
    parser.add_argument("--folder", type=Path, help="where to make it; default: the folder for temporary files")
    parser.add_argument("--json", action="store_true", help="the JSON line only, without the table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = make_evaluation(Path(folder) / "evaluation", options.rollouts, options.size)
        size = results.stat().st_size
        if not options.json:
            print(f"{options.rollouts:,} rollouts in {size / 1e6:,.0f} MB")
        result: dict[str, Any] = {"rollouts": options.rollouts, "bytes": size}
        for part in PARTS:
            result[part] = measure(part, results)
            if not options.json:
                report(part, result[part])
    print(json.dumps({"benchmark": "viewer", **result}))


if __name__ == "__main__":
    main()
