"""Environments of whet in SkyRL: a generator for its trainers.

    class EnvExp(BasePPOExp):  # of skyrl.train.entrypoints.main_base
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            env = whet.load_environment("calculator")
            return skyrl.EnvGenerator(env, cfg.generator, inference_engine_client, tokenizer)

    Dataset.from_list(skyrl.rows(env)).to_parquet("train.parquet")  # data.train_data

SkyRL's engines sample ids and SkyRL learns from them; whet renders, so that a turn continues the very ids of the one
before, plays the environment and scores the rollouts of a row together. What the environment said has the loss mask 0.
A rollout that fails is tried again, and then raises its error: SkyRL has no rollout without a reward.

Source of the interface: SkyRL at a9564572e, `skyrl/train/generators/base.py`,
`skyrl/backends/skyrl_train/inference_servers/base.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from whet.envs.environment import Environment
from whet.errors import ConfigError, InfraError, OverlongPromptError
from whet.inference.protocol import Sample, SampleRequest, VersionRun
from whet.integrations.trainer_engine import data_rows, one_sequence, row_of, trainer_client
from whet.rollouts.groups import run_group
from whet.types import RolloutInput, State

_WORKS = "whet works with the commit a9564572e of github.com/NovaSky-AI/SkyRL, in Python 3.12 or later"
try:
    from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend
    from skyrl.train.generators.base import GeneratorInterface
except (ImportError, TypeError) as error:  # a TypeError of pydantic, in Python 3.11
    raise ConfigError(f"skyrl cannot be imported here ({error}); {_WORKS}.") from error


def rows(env: Environment, n: int = -1, seed: int | None = None) -> list[dict[str, Any]]:
    """The first `n` training rows (-1 = all), for a file of `data.train_data`."""
    return data_rows(env, n, seed, env_class="whet")


class EnvGenerator(GeneratorInterface):  # type: ignore[misc]  # SkyRL has no types
    """Rollouts of an environment of whet.

    Args:
        generator_cfg: SkyRL's section `generator`: lengths, and the sampling of batches that bring none.
        inference_engine_client, tokenizer: as `BasePPOExp.get_generator` receives them.
        max_retries: how often a rollout is attempted again that failed for reasons outside model and task.
    """

    def __init__(
        self, env: Environment, generator_cfg: Any, inference_engine_client: Any, tokenizer: Any, max_retries: int = 2
    ) -> None:
        self.env, self.cfg, self.max_retries = env, generator_cfg, max_retries
        self.inference_engine_client, self.tokenizer = inference_engine_client, tokenizer

    async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> dict[str, Any]:
        """A rollout of each row of the batch, in its order. Raises the error of one that failed."""
        sampling = input_batch.get("sampling_params")
        if sampling is None:
            sampling = get_sampling_params_for_backend("vllm", self.cfg.sampling_params)
        max_tokens = int(sampling["max_tokens"])
        args = {"temperature": float(sampling["temperature"]), "max_tokens": max_tokens}

        async def draw(request: SampleRequest) -> Sample:
            return await self._drawn(request, sampling)

        client = trainer_client(draw, self.tokenizer, max_context=int(self.cfg.max_input_length) + max_tokens)
        given = [row_of(extras) for extras in input_batch["env_extras"]]
        ids = input_batch.get("trajectory_ids")
        groups: dict[Any, list[int]] = {}
        for index, row in enumerate(given):
            groups.setdefault(row["example_id"] if ids is None else ids[index].instance_id, []).append(index)

        async def group(indices: list[int]) -> list[State]:
            inputs: list[RolloutInput] = [given[index] for index in indices]
            return await run_group(self.env, inputs, client, "policy", args, max_retries=self.max_retries)

        done = await asyncio.gather(*map(group, groups.values()))
        states = {
            i: state
            for indices, group in zip(groups.values(), done, strict=True)
            for i, state in zip(indices, group, strict=True)
        }
        return _output([states[index] for index in range(len(given))], ids, args["temperature"])

    async def _drawn(self, request: SampleRequest, sampling: dict[str, Any]) -> Sample:
        params = request.params
        own = {"max_tokens": params.max_tokens, "stop_token_ids": list(params.stop_token_ids), "logprobs": 0}
        output = await self.inference_engine_client.generate(
            {
                "prompt_token_ids": [request.prompt_ids],
                "sampling_params": {**sampling, **own},
                "session_ids": [request.rollout_key],
            }
        )
        ids, logprobs = list(output["response_ids"][0]), (output.get("response_logprobs") or [None])[0]
        if output["stop_reasons"][0] not in ("stop", "length"):
            raise InfraError(f"SkyRL's engine ended the request: {output['stop_reasons'][0]}")
        if logprobs is None or len(logprobs) != len(ids):
            raise ConfigError("SkyRL's engine gave no logprobs of the tokens that it sampled.")
        versions = [VersionRun(0, len(ids))] if ids else []
        return Sample(ids, [float(value) for value in logprobs], versions, output["stop_reasons"][0])


def _output(states: list[State], ids: Any, temperature: float) -> dict[str, Any]:
    """The rollouts as SkyRL's `GeneratorOutput`."""
    sequences = []
    for state in states:
        if state["error"] is not None:
            raise state["error"]
        sequence = one_sequence(state, temperature)
        if sequence is None:
            raise OverlongPromptError("a first prompt leaves no room in generator.max_input_length")
        sequences.append(sequence)
    metrics = [{name: float(value) for name, value in (state["metrics"] or {}).items()} for state in states]
    names = {name for one in metrics for name in one}
    timings = [state["timing"] for state in states]
    return {
        "prompt_token_ids": [sequence.prompt_ids for sequence in sequences],
        "response_ids": [sequence.response_ids for sequence in sequences],
        "rewards": [float(state["reward"]) for state in states],
        "loss_masks": [sequence.mask for sequence in sequences],
        "stop_reasons": ["length" if state["trajectory"][-1]["is_truncated"] else "stop" for state in states],
        "rollout_metrics": {f"environment/{n}": sum(one.get(n, 0.0) for one in metrics) / len(metrics) for n in names},
        "rollout_logprobs": [sequence.logprobs for sequence in sequences],
        "trajectory_ids": ids,
        "trajectory_generation_times": [timing.generation.duration for timing in timings],
        "trajectory_time_splits": {
            "llm": [timing.model.duration for timing in timings],
            "env": [timing.env.duration for timing in timings],
        },
        "rollout_expert_indices": None,
        "is_last_step": None,
        "env_metrics": metrics,
    }
