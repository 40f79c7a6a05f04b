"""Demonstrations: rollouts of the real environments with a scripted expert in place of the model.

The expert is an `Engine`: it receives token ids and returns token ids. Everything between it and the environment
(rendering, continuation from turn to turn, parsing, tools, merging turns into sequences) is what reinforcement learning
uses, so demonstrations cannot drift away from what the model will be shown. Only training splits are ever read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, cast

from whet.envs.environment import Environment
from whet.errors import ModelError
from whet.inference.policy_client import PolicyClient
from whet.inference.protocol import OnTokens, Sample, SampleRequest, VersionRun, WeightUpdate
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.models.experts import TURN_END, Conversation, Expert
from whet.rl.data.samples import TokenSequence, sequences_of
from whet.types import RolloutInput, SamplingArgs

SAMPLING = {"temperature": 1.0, "max_tokens": 256}


@dataclass(slots=True)
class ExpertEngine:
    """An `Engine` that reads the prompt as text and lets an expert write the answer."""

    tokenizer: Any
    expert: Expert
    rng: Random
    version: int = 0
    recomputes: ClassVar[bool] = True

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        prompt = self.tokenizer.decode(request.prompt_ids, skip_special_tokens=False)
        answer = self.expert(Conversation.read(prompt), self.rng)
        ids = self.tokenizer.encode(answer + TURN_END, add_special_tokens=False)
        if on_tokens is not None:
            on_tokens(ids)
        return Sample(ids, [0.0] * len(ids), [VersionRun(self.version, len(ids))], "stop")

    async def load_weights(self, update: WeightUpdate) -> None:
        self.version = update.version

    async def unload_adapter(self, name: str) -> None:
        """There is none: `load_weights` takes whatever it is given."""
        raise ModelError(f"an expert has no adapter {name!r}")

    async def release(self, rollout_key: str) -> None:
        """There is nothing to forget."""

    async def close(self) -> None:
        """There is nothing to close."""


def demonstrate(
    env: Environment,
    expert: Expert,
    tokenizer: Any,
    *,
    start: int = 0,
    stop: int,
    seed: int,
    without_thinking: float = 0.0,
) -> list[TokenSequence]:
    """Conversations number `start` to `stop` on the environment's training tasks, over and over if those are fewer.

    A share of `without_thinking` is shown the empty thinking block of `enable_thinking=False`, so that the model knows
    both forms of the prompt. Raises what the environment raises: an expert has no excuse for a rollout that failed.
    """
    rng = Random(f"{env.env_id} {seed} {start}")
    engine = ExpertEngine(tokenizer, expert, rng)
    client = PolicyClient(engine, ChatRenderer(tokenizer), max_context=tokenizer.model_max_length)
    rows = env.get_dataset()

    async def demonstrations() -> list[TokenSequence]:
        sequences: list[TokenSequence] = []
        for number in range(start, stop):
            row = cast(RolloutInput, rows[number % len(rows)])
            thinking: SamplingArgs = {"enable_thinking": False} if rng.random() < without_thinking else {}
            state = await env.rollout(row, client, "expert", {**SAMPLING, **thinking})
            if state["error"] is not None:
                raise state["error"]
            sequences += sequences_of(state["trajectory"], temperature=1.0, rollout=f"{env.env_id} {number}")
        return sequences

    return asyncio.run(demonstrations())


def batches(sequences: list[TokenSequence], size: int, seed: int) -> Iterator[list[TokenSequence]]:
    """Batches without end: every pass in a new order, what does not fill a batch left for another pass."""
    rng = Random(seed)
    while True:
        order = rng.sample(sequences, len(sequences))
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]
