"""Demonstrations: rollouts of the real environments in which an expert stands where the model will.

The expert is an `Engine`: it is handed token ids and answers with token ids. Everything between it and the environment
(rendering, continuation from turn to turn, parsing, tools, merging turns into sequences) is what reinforcement learning
uses, so demonstrations cannot drift away from what the model will be shown. Only training splits are ever read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Any, cast

from whet.envs.environment import Environment
from whet.inference.policy_client import PolicyClient
from whet.inference.protocol import Sample, SampleRequest, VersionRun, WeightUpdate
from whet.inference.rendering import ChatRenderer
from whet.models.experts import TURN_END, Conversation, Expert
from whet.rl.samples import TokenSequence, sequences_of
from whet.types import RolloutInput

SAMPLING = {"temperature": 1.0, "max_tokens": 256}


@dataclass(slots=True)
class ExpertEngine:
    """An `Engine` that reads the prompt as text and lets an expert write the answer."""

    tokenizer: Any
    expert: Expert
    rng: Random
    version: int = 0

    async def sample(self, request: SampleRequest) -> Sample:
        prompt = self.tokenizer.decode(request.prompt_ids, skip_special_tokens=False)
        answer = self.expert(Conversation.read(prompt), self.rng)
        ids = self.tokenizer.encode(answer + TURN_END, add_special_tokens=False)
        return Sample(ids, [0.0] * len(ids), [VersionRun(self.version, len(ids))], "stop")

    async def load_weights(self, update: WeightUpdate) -> None:
        self.version = update.version

    async def release(self, rollout_key: str) -> None:
        """There is nothing to forget."""

    async def close(self) -> None:
        """There is nothing to close."""


def demonstrate(
    env: Environment,
    expert: Expert,
    tokenizer: Any,
    *,
    count: int,
    seed: int,
    without_thinking: float = 0.0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[TokenSequence]:
    """`count` conversations on the environment's training tasks, over and over from the first if they are fewer.

    A share of `without_thinking` is shown the empty thinking block of `enable_thinking=False`, so that the model knows
    both forms of the prompt. Raises what the environment raises; an expert has no excuse for an errored rollout.
    """
    return asyncio.run(_demonstrate(env, expert, tokenizer, count, seed, without_thinking, progress))


async def _demonstrate(
    env: Environment,
    expert: Expert,
    tokenizer: Any,
    count: int,
    seed: int,
    without_thinking: float,
    progress: Callable[[int], None],
) -> list[TokenSequence]:
    rng = Random(f"{env.env_id} {seed}")
    renderer = ChatRenderer(tokenizer)
    client = PolicyClient(ExpertEngine(tokenizer, expert, rng), renderer, max_context=tokenizer.model_max_length)
    sequences: list[TokenSequence] = []
    for number, row in enumerate(islice(cycle(env.get_dataset()), count)):
        thinking: dict[str, Any] = {"enable_thinking": False} if rng.random() < without_thinking else {}
        state = await env.rollout(cast(RolloutInput, row), client, "expert", {**SAMPLING, **thinking})
        if state["error"] is not None:
            raise state["error"]
        sequences += sequences_of(state["trajectory"], temperature=1.0, rollout=f"{env.env_id} {number}")
        progress(number + 1)
    return sequences


def batches(sequences: list[TokenSequence], size: int, seed: int) -> Iterator[list[TokenSequence]]:
    """Batches without end: every pass in a new order, what does not fill a batch left for another pass."""
    rng = Random(seed)
    while True:
        order = rng.sample(sequences, len(sequences))
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]
