"""What the learner recomputes is what the engine sampled: the invariants of token truth, on all five environments.

1. fp32: no token's logprob differs by more than 1e-4 between engine and learner, multi-turn and tools included.
2. A rollout is exactly one sequence: no turn was tokenised again.
3. Sampled ids, logprobs and versions reach the batch unchanged and in order; nothing else carries loss.
"""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from whet.envs.loading import load_environment
from whet.inference.loading import load_policy
from whet.models import tiny
from whet.rl.data.batch import pack, sequences_of
from whet.rl.learner.config import OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rollouts.groups import run_group
from whet.types import State

ENVIRONMENTS = ("reverse-text", "alphabet-sort", "calculator", "guess-number", "arithmetic")


async def attempt(name: str) -> list[State]:
    """Four groups of four rollouts, all in flight together."""
    policy = load_policy("whet/tiny", dtype="float32", threads=1)
    env = load_environment(name)
    rows = list(env.get_dataset())[:4]
    groups = await asyncio.gather(
        *(
            run_group(
                env,
                [row] * 4,
                policy.client,
                "whet/tiny",
                [{"max_tokens": 64, "temperature": 0.9, "seed": 4 * place + i} for i in range(4)],
            )
            for place, row in enumerate(rows)
        )
    )
    await policy.engine.close()
    return [state for group in groups for state in group]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_1_2_3_engine_and_learner_agree_on_every_sampled_token(name: str, tmp_path: Path) -> None:
    states = asyncio.run(attempt(name))
    assert [state["error"] for state in states] == [None] * 16
    if name in ("alphabet-sort", "guess-number", "calculator"):
        assert max(len(state["trajectory"]) for state in states) > 1, "no rollout had a second turn"

    sequences = []
    for index, state in enumerate(states):
        found = sequences_of(state["trajectory"], temperature=0.9, rollout=str(index))
        assert len(found) == 1, f"rollout {index} branched: a turn was tokenised again"
        steps = [step["tokens"] for step in state["trajectory"]]
        (sequence,) = found
        assert sequence.ids[sequence.trained].tolist() == [id for step in steps for id in step["completion_ids"]]
        sampled = np.array([p for step in steps for p in step["completion_logprobs"]], np.float32)
        np.testing.assert_array_equal(sequence.logprobs[sequence.trained], sampled)
        assert set(sequence.versions[sequence.trained]) == {0}
        sequences.append(sequence)

    batch = pack(sequences)
    learner = make_learner(
        tiny.path(),
        optimizer=OptimizerConfig(),
        lora=None,
        max_steps=1,
        seed=0,
        threads=1,
        publish_directory=tmp_path,
    )
    difference = np.abs(learner.token_logprobs(batch) - batch.logprobs)
    assert batch.trained_tokens > 50
    assert difference[~batch.trained].max() == 0
    assert difference.max() <= 1e-4
