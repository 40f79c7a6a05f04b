"""The card of whet/tiny: scores on held-out tasks.

`card.json` in the model's directory holds the measurements; `README.md` in the same directory is generated from it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whet.envs.environment import Environment
from whet.envs.loading import load_environment
from whet.evals.evaluate import evaluate_environment
from whet.inference.loading import load_policy
from whet.models.local_models import CARD, describe
from whet.rollouts.limits import gather
from whet.rollouts.totals import EvalScore

MAX_TOKENS = 64
"""Of a turn, when measuring."""


@dataclass(frozen=True, slots=True)
class Score:
    """One environment on held-out tasks; `rollouts` were sampled at temperature 1, greedy is one for each task."""

    environment: str
    examples: int
    rollouts: int
    reward: float
    exact_match: float
    greedy_reward: float
    greedy_exact_match: float


@dataclass(frozen=True, slots=True)
class Card:
    seed: int
    steps: int
    demonstrations: int
    seconds: int
    scores: list[Score]


def measure(
    model: Path,
    env_ids: list[str],
    *,
    examples: int,
    rollouts_per_example: int = 4,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> list[Score]:
    """Score a model's directory on the evaluation split of each environment, in the embedded engine, fp32."""
    return asyncio.run(_measure(model, env_ids, examples, rollouts_per_example, progress))


async def _measure(
    model: Path,
    env_ids: list[str],
    examples: int,
    rollouts_per_example: int,
    progress: Callable[[str, int, int], None],
) -> list[Score]:
    policy = load_policy(str(model))
    environments = {env_id: load_environment(env_id, num_eval=examples) for env_id in env_ids}
    done = 0

    async def evaluate(env: Environment, temperature: float, rollouts: int) -> EvalScore:
        nonlocal done
        score = await evaluate_environment(
            env,
            policy.client,
            str(model),
            num_examples=examples,
            rollouts_per_example=rollouts,
            sampling_args={"temperature": temperature, "max_tokens": MAX_TOKENS},
            max_concurrent=-1,
            seed=0,
        )
        done += 1
        progress("scores", done, 2 * len(env_ids))
        return score

    sampled = [evaluate(env, 1.0, rollouts_per_example) for env in environments.values()]
    greedy = [evaluate(env, 0.0, 1) for env in environments.values()]
    results = await gather([*sampled, *greedy])
    await gather([env.close() for env in environments.values()])
    await policy.engine.close()
    pairs = zip(env_ids, results[: len(env_ids)], results[len(env_ids) :], strict=True)
    return [_score(env_id, *pair) for env_id, *pair in pairs]


def _score(env_id: str, sampled: EvalScore, greedy: EvalScore) -> Score:
    return Score(
        environment=env_id,
        examples=greedy.rollouts,
        rollouts=sampled.rollouts,
        reward=round(sampled.reward, 3),
        exact_match=round(sampled.metrics["exact_match"], 3),
        greedy_reward=round(greedy.reward, 3),
        greedy_exact_match=round(greedy.metrics["exact_match"], 3),
    )


def write_card(model: Path, card: Card) -> None:
    """`card.json`, and the `README.md` that says the same to people."""
    (model / CARD).write_text(json.dumps(asdict(card), indent=2) + "\n", encoding="utf-8")
    (model / "README.md").write_text(readme(describe(model)), encoding="utf-8")


def readme(description: dict[str, Any]) -> str:
    """The model card for people, from what `describe` found."""
    rows = "\n".join(
        f"| {s['environment']} | {s['reward']:.2f} | {s['greedy_reward']:.2f} | {s['exact_match']:.2f} "
        f"| {s['greedy_exact_match']:.2f} |"
        for s in description["scores"]
    )
    examples = max(score["examples"] for score in description["scores"])
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---

# whet/tiny

A language model small enough to learn by reinforcement on two CPU cores in two minutes, and real enough that everything
whet does to a large model can be done to it: Qwen3 architecture and chat format (ChatML roles, tools in Hermes form,
thinking marks), loadable by plain `transformers`. It knows five small tasks and nothing else. It is for trying, testing
and teaching; it is of no use as an assistant.

| | |
|---|---|
| architecture | {description["architecture"]} |
| parameters | {description["parameters"] / 1e6:.2f} million, {description["dtype"]} |
| shape | hidden {description["hidden_size"]}, {description["layers"]} layers, {description["heads"]} heads |
| tokenizer | {description["tokenizer"]} |
| context | {description["context"]} tokens |
| made by | {description["made"]} |

## What it can do

Held-out tasks, {examples} for each environment with its default arguments; temperature 1 is the mean over several
rollouts for each task.

| environment | reward, temperature 1 | reward, greedy | exact, temperature 1 | exact, greedy |
|---|---|---|---|---|
{rows}

Sampled at temperature 1 it is right only part of the time, on purpose: it was made by imitating scripted experts that
err, so that there is something to learn. The data is generated; evaluation tasks are never shown.

## Make it again

```
python -m scripts.tiny_model.recipe --out my-tiny
```
"""
