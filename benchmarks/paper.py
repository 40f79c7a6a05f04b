"""A step on paper (`whet.rl.step_time`) against the steps of real runs on this machine.

    python benchmarks/paper.py                                        # whet/tiny
    python benchmarks/paper.py --config configs/rl/smollm2-calculator.toml --steps 3
    python benchmarks/paper.py --steps 1                              # that it runs at all

Each config is run without evaluations, on one thread. The rates of the machine are measured before each step begins
anew, since other work on it changes them; tokens are those of the step. Printed are seconds of sampling and of
learning on paper and as measured, and their ratio: what the paper leaves out is Python, environments and small
products.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from whet.inference.architecture import Architecture
from whet.rl.config import RunConfig, load_run_config
from whet.rl.estimate import architecture
from whet.rl.step_time import Rates, StepTime, Work, cpu_rates, step_time

CONFIGS = ["configs/rl/quickstart.toml"]


def run(config: RunConfig, room: Path) -> tuple[list[dict[str, Any]], Rates]:
    """The metrics of each step, and the median rates of the machine while it ran."""
    path = room / "config.toml"
    path.write_text(config.to_toml())
    rates = [cpu_rates(1)]
    with (room / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "whet.cli.main", "train", "run", str(path)], stdout=log, stderr=subprocess.STDOUT
        )
        while process.poll() is None:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                rates.append(cpu_rates(1))
    if process.returncode:
        sys.exit((room / "log.txt").read_text()[-2000:])
    lines = (config.directory / "metrics.jsonl").read_text().splitlines()
    middle = Rates(
        rates[0].name,
        products=statistics.median(each.products for each in rates),
        memory=statistics.median(each.memory for each in rates),
        link=statistics.median(each.link for each in rates),
        host=statistics.median(each.host for each in rates),
        overlaps=False,
    )
    return [json.loads(line) for line in lines], middle


def on_paper(arch: Architecture, config: RunConfig, rates: Rates, step: dict[str, Any]) -> StepTime:
    """With the step's own tokens: those trained were sampled, the others are prompts."""
    answer = step["seq_len/trained_mean"]
    return step_time(arch, config, rates, Work(config.batch_size, answer, step["seq_len/mean"] - answer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", nargs="+", default=CONFIGS, help="run configs")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="the JSON lines only, without the table")
    options = parser.parse_args()
    for name in options.config:
        with tempfile.TemporaryDirectory(prefix="whet-benchmark-") as folder:
            keys = ["--name", "paper", "--runs_directory", folder, "--max_steps", str(options.steps)]
            keys += ["--eval.before", "false", "--eval.after", "false", "--deployment.threads", "1"]
            config = load_run_config(Path(name), [*keys, "--learner.device", "cpu", "--inference.device", "cpu"])
            arch, why = architecture(config.model)
            if arch is None:
                print(f"{name}: {why}", file=sys.stderr)
                continue
            steps, rates = run(config, Path(folder))
            found = [on_paper(arch, config.settled(), rates, step) for step in steps]
        result: dict[str, Any] = {"config": name, "steps": len(steps), "gflops": round(rates.products / 1e9)}
        for part, paper, measured in (
            ("sampling", [each.sampling for each in found], [step["time/generate"] for step in steps]),
            ("learning", [each.learner - each.weights for each in found], [step["time/train"] for step in steps]),
        ):
            ratios = [real / thought for real, thought in zip(measured, paper, strict=True)]
            result[part] = {
                "paper_s": round(statistics.median(paper), 3),
                "measured_s": round(statistics.median(measured), 3),
                "ratio": round(statistics.median(ratios), 2),
            }
        print(json.dumps(result))
        if not options.json:
            print(f"\n{name}: {len(steps)} steps, one core at {result['gflops']} GFLOP/s")
            for part in ("sampling", "learning"):
                took = result[part]
                text = f"{took['measured_s']:.2f} s measured, {took['paper_s']:.2f} s on paper"
                print(f"  {part:<10} {text}: {took['ratio']:.2f}x")


if __name__ == "__main__":
    main()
