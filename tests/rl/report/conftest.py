"""A run directory as training leaves it: real rollouts by a scripted model, written by the real writers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.clients.scripted import ScriptedClient
from whet.envs.multiturn_env import SingleTurnEnv
from whet.evals.evaluate import evaluate_environment
from whet.rl.monitors.jsonl import JsonlMonitor
from whet.rl.monitors.protocol import EvalReport, StepReport
from whet.rl.storage.run_directory import write_evaluation, write_step
from whet.rollouts.groups import run_group
from whet.rollouts.token_rows import rollout_row
from whet.rollouts.totals import EvalScore
from whet.rubrics.rubric import Rubric
from whet.types import Response, ResponseMessage, ResponseTokens, State

CONFIG = """\
name = "demo"
model = "whet/tiny"
max_steps = 40
batch_size = 16
rollouts_per_example = 4
learning_rate = 2e-4
seed = 0

[[env]]
id = "reverse-text"

[[env]]
id = "./environments/shout"
name = "shout"
"""


def overlap(completion: Any, answer: str) -> float:
    """Share of places at which the answer is right."""
    said = completion[-1]["content"]
    return sum(a == b for a, b in zip(said, answer, strict=False)) / max(len(said), len(answer), 1)


def exact_match(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def environment(name: str, count: int = 8) -> SingleTurnEnv:
    words = ["".join(random.Random(f"{name}/{i}").choices("abcdefgh", k=6)) for i in range(count)]
    task = str.upper if name == "shout" else lambda word: word[::-1]
    rows = [{"question": f"{name}: {word}", "answer": task(word)} for word in words]
    rubric = Rubric(funcs=[overlap], weights=[1.0])
    rubric.add_metric(exact_match)
    return SingleTurnEnv(dataset=rows, rubric=rubric, env_id=name)


def policy(skill: float, seed: int, extra: str = "") -> ScriptedClient:
    """A model that gets each letter right with probability `skill` and reports tokens as an engine would."""
    rng = random.Random(seed)

    def answer(state: State) -> Response:
        said = "".join(letter if rng.random() < skill else "x" for letter in state["answer"]) + extra
        ids = [ord(letter) for letter in said]
        tokens = ResponseTokens([1, 2, 3], ids, [-0.5] * len(ids), [[seed, len(ids)]])
        message = ResponseMessage(said, finish_reason="stop", tokens=tokens)
        return Response("r", "scripted", message, created=0)

    return ScriptedClient(answer)


async def _build(directory: Path, steps: int, extra: str) -> None:
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text(CONFIG)
    log = JsonlMonitor(directory / "metrics.jsonl")
    environments = {name: environment(name) for name in ("reverse-text", "shout")}
    for step in range(steps + 1):
        skill = 0.3 + 0.6 * step / steps
        if step in (0, steps):
            moment = "before" if step == 0 else "after"
            scores: list[EvalScore] = []
            for name, env in environments.items():
                for sampling, rollouts in (("temperature 1", 4), ("greedy", 1)):
                    client = policy(skill if sampling != "greedy" else min(1, skill + 0.1), step, extra)
                    scores.append(
                        await evaluate_environment(
                            env,
                            client,
                            "scripted",
                            num_examples=4,
                            rollouts_per_example=rollouts,
                            sampling_args={},
                            max_concurrent=8,
                            seed=0,
                            label=(name, sampling),
                        )
                    )
            report = EvalReport(moment, step, step, scores)
            write_evaluation(directory / "rollouts", report)
            log.evaluation(report)
        if step:
            await _step(directory, log, environments, step, policy(skill, step, extra))


async def _step(
    directory: Path, log: JsonlMonitor, environments: dict[str, SingleTurnEnv], step: int, client: ScriptedClient
) -> None:
    rows, metrics = [], {}
    for name, env in environments.items():
        task = env.get_dataset()[step % 8]
        states = await run_group(env, [task] * 4, client, "scripted", {})
        rows += [rollout_row(s, group=f"{step}-{name}", environment=name, advantage=s["advantage"]) for s in states]
        metrics[f"reward/{name}/mean"] = sum(s["reward"] for s in states) / 4
    metrics["reward/mean"] = sum(metrics.values()) / 2
    metrics |= {
        "policy/kl": 1e-4 * step,
        "policy/entropy": 2.0 / step,
        "optim/grad_norm": 1.0,
        "optim/lr": 2e-4,
        "seq_len/trained_mean": 6.0,
        "time/step": 0.5,
        "time/generate": 0.3,
        "time/train": 0.2,
        "perf/tokens_per_s": 9000.0 + step,
        "groups/zero_variance_frac": 0.1,
    }
    write_step(directory / "rollouts", step, rows)
    log.step(StepReport(step, metrics))


@pytest.fixture
def build_run(tmp_path: Path) -> Callable[..., Path]:
    """Makes `runs/demo` after `steps` steps; `extra` is appended to everything the model says."""

    def build(*, steps: int = 6, extra: str = "") -> Path:
        directory = tmp_path / "demo"
        asyncio.run(_build(directory, steps, extra))
        return directory

    return build
