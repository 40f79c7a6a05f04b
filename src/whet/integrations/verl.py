"""Environments of whet in verl: an agent loop, `whet.integrations.verl.EnvAgentLoop`.

    # agent_loops.yaml, for actor_rollout_ref.rollout.agent.agent_loop_config_path
    - name: whet
      _target_: whet.integrations.verl.EnvAgentLoop
      env_id: calculator

    from whet.integrations import verl  # the data
    Dataset.from_list(verl.rows(whet.load_environment("calculator"))).to_parquet("train.parquet")

verl's servers sample ids and verl learns from them; whet renders, so that a turn continues the very ids of the one
before, plays the environment and scores. What the environment said has the mask 0. A rollout that fails is tried again,
and then raises its error: verl has no rollout without a reward. verl spreads the rollouts of a prompt over workers, so
that a rubric that compares them is refused.

Source of the interface: verl 0.8 and 0.9, `verl/experimental/agent_loop`.
"""

from __future__ import annotations

import importlib.metadata
import json
from functools import lru_cache
from typing import Any

from whet.envs.environment import Environment
from whet.envs.loading import load_environment
from whet.errors import ConfigError, InfraError, OverlongPromptError
from whet.inference.protocol import Sample, SampleRequest, VersionRun
from whet.integrations.trainer_engine import ROW, data_rows, one_sequence, row_of, trainer_client
from whet.rollouts.groups import run_group

_WORKS = "whet works with verl 0.8 and 0.9"
try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
except ImportError as error:
    raise ConfigError(f"verl cannot be imported here ({error}); {_WORKS}.") from error
_version = importlib.metadata.version("verl")
if not _version.startswith(("0.8.", "0.9.")):
    raise ConfigError(f"verl is {_version}; {_WORKS}.")


def rows(env: Environment, n: int = -1, seed: int | None = None) -> list[dict[str, Any]]:
    """The first `n` training rows (-1 = all), for a file of `data.train_files`. `agent_name` is that of the config."""
    made = data_rows(env, n, seed, data_source=env.env_id or "whet", agent_name="whet")
    return [{**row, "extra_info": {"index": index, ROW: row.pop(ROW)}} for index, row in enumerate(made)]


@lru_cache(maxsize=8)
def _environment(env_id: str, env_args: str) -> Environment:
    env = load_environment(env_id, **json.loads(env_args))
    if env.requires_group_rollouts:
        raise ConfigError(f"environment '{env_id}' compares the rollouts of a group, which verl runs apart.")
    return env


class EnvAgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl has no types
    """A rollout of an environment of whet.

    Args:
        env_id, env_args: of the environment, which is loaded once in each process.
        max_retries: how often a rollout is attempted again that failed for reasons outside model and task.
    """

    def __init__(
        self, *args: Any, env_id: str, env_args: dict[str, Any] | None = None, max_retries: int = 2, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.env, self.max_retries = _environment(env_id, json.dumps(dict(env_args or {}))), max_retries
        lengths = self.config.actor_rollout_ref.rollout
        self.prompt_length, self.response_length = int(lengths.prompt_length), int(lengths.response_length)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """The rollout of a row of `rows`. Raises its error where it failed."""
        row, temperature = row_of(kwargs.get("extra_info") or {}), float(sampling_params["temperature"])
        # The engine gets `sampling_params` as they are; these are what whet records of them.
        args = {"temperature": temperature, "max_tokens": self.response_length}
        room = self.prompt_length + self.response_length

        async def draw(request: SampleRequest) -> Sample:
            return await self._drawn(request, sampling_params)

        client = trainer_client(draw, self.tokenizer, max_context=room)
        (state,) = await run_group(self.env, [row], client, "policy", args, max_retries=self.max_retries)
        if state["error"] is not None:
            raise state["error"]
        sequence = one_sequence(state, temperature)
        if sequence is None or len(sequence.prompt_ids) > self.prompt_length:
            raise OverlongPromptError(f"the first prompt is longer than data.max_prompt_length ({self.prompt_length})")
        most = self.response_length
        return AgentLoopOutput(
            prompt_ids=sequence.prompt_ids,
            response_ids=sequence.response_ids[:most],
            response_mask=sequence.mask[:most],
            response_logprobs=sequence.logprobs[:most],
            reward_score=float(state["reward"]),
            num_turns=2 * len(state["trajectory"]),
            metrics=AgentLoopMetrics(
                generate_sequences=state["timing"].model.duration, tool_calls=state["timing"].env.duration
            ),
            extra_fields={"turn_scores": [], "tool_rewards": [], "reward_extra_info": dict(state["metrics"] or {})},
        )

    async def _drawn(self, request: SampleRequest, sampling_params: dict[str, Any]) -> Sample:
        params = request.params
        own = {"max_tokens": params.max_tokens, "stop_token_ids": list(params.stop_token_ids), "logprobs": True}
        output = await self.server_manager.generate(
            request_id=request.rollout_key, prompt_ids=request.prompt_ids, sampling_params={**sampling_params, **own}
        )
        ids, logprobs = list(output.token_ids), output.log_probs
        if output.stop_reason in ("abort", "aborted"):
            raise InfraError("verl's server ended the request")
        if logprobs is None or len(logprobs) != len(ids):
            raise ConfigError("verl's server gave no logprobs of the tokens that it sampled.")
        reason = "length" if len(ids) >= params.max_tokens else "stop"
        versions = [VersionRun(0, len(ids))] if ids else []
        return Sample(ids, [float(value) for value in logprobs], versions, reason)  # type: ignore[arg-type]
