"""What `verl.py`, `skyrl.py` and `trl.py` share: another library's engine as whet's, and a rollout as one sequence."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

from whet.envs.environment import Environment
from whet.errors import ConfigError
from whet.inference.policy_client import PolicyClient
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, WeightUpdate
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.rl.data.batch import sequences_of
from whet.types import RolloutInput, State

ROW = "whet_row"
"""The column of a trainer's data that has a row of the environment, as JSON."""


class TrainerEngine(Engine):
    """An engine whose weights are another library's business: `draw` continues the ids of a request."""

    version = 0
    recomputes = False

    def __init__(self, draw: Callable[[SampleRequest], Awaitable[Sample]]) -> None:
        self._draw = draw

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        sample = await self._draw(request)
        if on_tokens is not None:
            on_tokens(sample.ids)
        return sample

    async def load_weights(self, update: WeightUpdate) -> None:
        raise NotImplementedError("the trainer loads its weights itself")


def trainer_client(
    draw: Callable[[SampleRequest], Awaitable[Sample]], tokenizer: Any, *, max_context: int
) -> PolicyClient:
    """A client over `draw`, which renders with the tokenizer's chat template; a turn continues the ids of the last."""
    return PolicyClient(TrainerEngine(draw), _renderer(tokenizer), max_context=max_context)


@lru_cache(maxsize=4)
def _renderer(tokenizer: Any) -> ChatRenderer:
    return ChatRenderer(tokenizer)


class OneSequence(NamedTuple):
    """A rollout as the one sequence that a trainer takes: the first prompt, and all that follows."""

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]  # of `response_ids`: 1 where a token was sampled
    logprobs: list[float]  # of `response_ids`: the sampler's; 0 elsewhere


def one_sequence(state: State, temperature: float) -> OneSequence | None:
    """None where nothing was sampled. Raises `ConfigError` for turns that do not continue each other."""
    steps = [step for step in state["trajectory"] if step["tokens"] is not None and step["tokens"]["completion_ids"]]
    branches = sequences_of(steps, temperature=temperature, rollout=str(state["trajectory_id"]))
    if len(branches) > 1:
        raise ConfigError(
            f"a rollout of this environment has {len(branches)} branches (turns that do not continue the one "
            "before), and this trainer takes one sequence of each rollout."
        )
    if not branches:
        return None
    (sequence,) = branches
    start = sequence.turns[0][1]
    return OneSequence(
        sequence.ids[:start].tolist(),
        sequence.ids[start:].tolist(),
        sequence.trained[start:].astype(int).tolist(),
        sequence.logprobs[start:].tolist(),
    )


def data_rows(env: Environment, n: int, seed: int | None, **columns: Any) -> list[dict[str, Any]]:
    """The first `n` training rows (-1 = all) with these columns, their prompt, and themselves as JSON.

    Raises `ConfigError` for a row that is no JSON.
    """
    rows = []
    for row in env.get_dataset(n, seed):
        try:
            text = json.dumps(dict(row))
        except TypeError as error:
            raise ConfigError(f"example {row['example_id']} of the environment is no JSON ({error}).") from None
        rows.append({**columns, "prompt": [dict(message) for message in row["prompt"]], ROW: text})
    return rows


def row_of(columns: Mapping[str, Any]) -> RolloutInput:
    """The environment's row in a row of `data_rows`. Raises `ConfigError` where there is none."""
    if not isinstance(columns.get(ROW), str):
        raise ConfigError(f"the data has no column {ROW}; make it with rows(env).")
    return cast(RolloutInput, json.loads(columns[ROW]))
