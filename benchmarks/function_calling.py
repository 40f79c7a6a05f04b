"""SmolLM2-135M learns function calling (BFCL) by imitation, reinforcement learning and distillation: docs/results.md.

    python benchmarks/function_calling.py --to results                  # three seeds, hours on two cores
    python benchmarks/function_calling.py --to results --seeds 0 --smoke     # whet/tiny, a step each: that it runs

Runs and evaluations are in `--to`; one that is complete is not repeated, so an interrupted script goes on where it
was. Trained is on the category simple_python; the table is of other categories, greedy, one answer each. Means have a
95 % interval over questions, all seeds' answers to one of which are one observation, and the mean of each seed.
`figures.json` has the reward of each answer and what runs recorded at each step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.evals.analysis.statistics import clustered_mean

ROOT = Path(__file__).resolve().parents[1]
CONFIGS, BFCL = ROOT / "configs" / "bfcl", ROOT / "environments" / "bfcl"
CATEGORIES = ("multiple", "live_simple", "irrelevance")
RECORDED = (
    "step",
    "reward/mean",
    "rollouts/truncated_frac",
    "groups/zero_variance_frac",
    "policy/entropy",
    "time/step",
)
CURVE = (*RECORDED, "optim/loss", "validation/loss")
SMOKE = ["--model", "whet/tiny", "--max_steps", "1", "--batch_size", "4", "--data.too_long", "skip"]


def whet(to: Path, *words: str) -> None:
    if subprocess.run([sys.executable, "-m", "whet.cli.main", *words], cwd=to).returncode:
        sys.exit(f"stopped at: whet {' '.join(words)}")


def trained(to: Path, name: str, command: str, config: str, *options: str) -> str:
    """The folder of a run's model, as seen from `to`; made unless it is there."""
    model = f"runs/{name}/model"
    if not (to / model).is_dir():
        begun = (to / "runs" / name / "config.toml").is_file()
        if begun:
            whet(to, "train", command, f"runs/{name}/config.toml", "--resume")
        else:
            whet(to, "train", command, str(CONFIGS / f"{config}.toml"), "--name", name, *options)
    return model


def answers(to: Path, model: str, num: int) -> list[dict[str, Any]]:
    """The evaluation's rollouts: `reward`, and `info` with the category."""
    folder = to / "evals" / model.replace("/", "-")
    if not list(folder.glob("*/*/metadata.json")):
        arguments = json.dumps({"categories": CATEGORIES, "num_eval": num})
        options = ["-m", model, "-n", "-1", "-r", "1", "-T", "0", "-t", "64"]
        whet(to, "eval", "run", str(BFCL), *options, "-a", arguments, "--threads", "1", "-o", str(folder))
    (results,) = folder.glob("*/*/results.jsonl")
    return [json.loads(line) for line in results.read_text().splitlines()]


def share(rows: Sequence[dict[str, Any]]) -> str:
    mean = clustered_mean(rewards(rows))
    return "" if mean is None else f"{mean.mean:.2f} ({mean.interval})"


def rewards(rows: Sequence[dict[str, Any]]) -> dict[Any, list[float]]:
    """Of a model's answers, by question."""
    by_question: dict[Any, list[float]] = {}
    for row in rows:
        by_question.setdefault(row["info"]["id"], []).append(row["reward"])
    return by_question


def curve(metrics: Path) -> list[dict[str, float]]:
    """What a run recorded at each step, of the keys that there are."""
    rows = map(json.loads, metrics.read_text().splitlines())
    return [{key: round(row[key], 4) for key in CURVE if row.get(key) is not None} for row in rows]


def cell(of_seeds: Sequence[Sequence[dict[str, Any]]], category: str) -> str:
    """Of one row of a table: the share of all seeds, and of each."""
    kept = [[row for row in rows if row["info"]["category"] == category] for rows in of_seeds]
    each = ", ".join(f"{sum(row['reward'] for row in rows) / max(1, len(rows)):.2f}" for rows in kept)
    return share([row for rows in kept for row in rows]) + (f"; {each}" if len(kept) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, required=True, help="folder of runs and evaluations")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--num-eval", type=int, default=24, help="questions of each category")
    parser.add_argument("--smoke", action="store_true", help="whet/tiny and a step of each run")
    args = parser.parse_args()
    to: Path = args.to.resolve()
    to.mkdir(parents=True, exist_ok=True)
    if not (to / "calls.jsonl").is_file():
        subprocess.run([sys.executable, "-m", "bfcl.demonstrations", "calls.jsonl"], cwd=to, check=True, env=_path())
    smoke, num = SMOKE if args.smoke else [], 2 if args.smoke else args.num_eval
    environment = ["--env.0.id", str(BFCL), "--deployment.threads", "1"]
    start = trained(
        to,
        "start",
        "sft",
        "sft",
        "--max_steps",
        "4",
        "--optimizer.schedule",
        "constant",
        *smoke,
        "--data.path",
        "calls.jsonl",
    )
    models = {"untrained": ["whet/tiny" if args.smoke else "smollm2-135m"], "start: 4 batches imitated": [start]}
    smoke = ["--max_steps", "1"] if args.smoke else []
    imitated, reinforced, distilled = [], [], []
    for seed in args.seeds:
        of_seed = ["--seed", str(seed), *smoke]
        base = SMOKE if args.smoke else []
        imitated.append(trained(to, f"sft-{seed}", "sft", "sft", "--data.path", "calls.jsonl", *base, *of_seed))
        reinforced.append(trained(to, f"rl-{seed}", "run", "rl", *environment, *of_seed))
        teacher = ["--algorithm.reference", f"runs/rl-{args.seeds[0]}/adapters/step_{1 if args.smoke else 8}"]
        distilled.append(trained(to, f"opd-{seed}", "run", "distill", *environment, *teacher, *of_seed))
    models |= {"imitation, 8 batches": imitated, "reinforcement learning": reinforced, "distillation": distilled}
    found: dict[str, dict[Any, list[float]]] = {}
    print(f"| | {' | '.join(CATEGORIES)} |\n|---|{'---|' * len(CATEGORIES)}")
    for name, made in models.items():
        rows = [answers(to, model, num) for model in made]
        found |= {model: rewards(of_model) for model, of_model in zip(made, rows, strict=True)}
        print(f"| {name} | {' | '.join(cell(rows, category) for category in CATEGORIES)} |", flush=True)
    steps = {run.parent.name: curve(run) for run in sorted(to.glob("runs/*/metrics.jsonl"))}
    (to / "figures.json").write_text(json.dumps({"answers": found, "steps": steps}, sort_keys=True) + "\n")


def _path() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(BFCL)}


if __name__ == "__main__":
    main()
