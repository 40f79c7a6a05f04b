"""Three steps of the quickstart through the real command, checked from outside: it ends well and the weights move."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = 3


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        command = [str(Path(sys.executable).with_name("whet")), "train", "run", "configs/rl/quickstart.toml"]
        command += ["--name", "short", "--runs_directory", directory]
        command += ["--max_steps", str(STEPS), "--eval.num_examples", "8", "--deployment.threads", "1"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            print(f"error: the quickstart ended with exit code {done.returncode}")
            return 1
        lines = (Path(directory) / "short" / "metrics.jsonl").read_text().splitlines()
        steps = [line for line in map(json.loads, lines) if "optim/grad_norm" in line]
        if len(steps) != STEPS:
            print(f"error: {STEPS} steps were asked for and metrics.jsonl has {len(steps)}")
            return 1
        for line in steps:
            if not (math.isfinite(line["reward/mean"]) and line["optim/grad_norm"] > 0):
                print(f"error: step {line.get('step')} learned nothing: {line}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
