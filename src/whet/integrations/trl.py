"""Environments of whet in TRL's `GRPOTrainer`: whet's engine samples the rollouts, TRL learns from their tokens.

    from whet.integrations import trl

    env = whet.load_environment("calculator")
    GRPOTrainer(
        model=...,
        train_dataset=Dataset.from_list(trl.rows(env)),
        rollout_func=trl.rollout_func(env),
        reward_funcs=trl.reward_func,
        args=GRPOConfig(...),
    )

A rollout of several turns is one sequence: `prompt_ids`, `completion_ids` with what the environment said in between,
`env_mask` (1 where a token was sampled), `logprobs` of the sampler (0 elsewhere), and `rewards` by the environment's
rubric, which `reward_func` hands to TRL. A rollout that failed has the reward None, and no token that counts.

Source of the interface: trl 1.16, `trl/trainer/grpo_trainer.py`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from whet.envs.environment import Environment
from whet.errors import ConfigError
from whet.inference.loading import Policy, load_policy
from whet.inference.protocol import WeightUpdate
from whet.integrations.trainer_engine import one_sequence
from whet.rollouts.generate import run_sync
from whet.rollouts.groups import run_group
from whet.types import RolloutInput, SamplingArgs, State

VERSIONS = "trl 1.16 or later, before 2"
Rollouts: TypeAlias = dict[str, list[Any]]


def rows(env: Environment, n: int = -1, seed: int | None = None) -> list[dict[str, Any]]:
    """The first `n` training rows (-1 = all) for a `train_dataset`: their prompts, by which rollouts are matched."""
    return [{"prompt": [dict(message) for message in row["prompt"]]} for row in env.get_dataset(n, seed)]


def reward_func(completions: Sequence[Any], rewards: Sequence[float | None], **kwargs: Any) -> list[float | None]:
    """The rewards of the environment, for `reward_funcs`."""
    return list(rewards)


def rollout_func(env: Environment, *, max_retries: int = 2) -> Callable[[list[Any], Any], Rollouts]:
    """What TRL calls with prompts and the trainer, for `rollout_func`.

    Prompts are those of `rows(env)`. Temperature, top-p, top-k and min-p are the trainer's, and
    `max_completion_length` is the most tokens of one turn. A rollout that fails for reasons outside model and task is
    tried again `max_retries` times. Raises `ConfigError` for another version of TRL, and for a trainer whose model is
    an adapter or sharded.
    """
    version = importlib.metadata.version("trl") if _is_installed() else "not installed"
    if version.split(".")[0] != "1" or int(version.split(".")[1]) < 16:
        raise ConfigError(f"trl is {version}; whet works with {VERSIONS}.")
    return _RolloutFunc(env, max_retries)


def _is_installed() -> bool:
    try:
        importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class _RolloutFunc:
    """The rollouts of one trainer, with an engine that has the weights that it last saw."""

    def __init__(self, env: Environment, max_retries: int) -> None:
        self._env, self._max_retries = env, max_retries
        self._rows: dict[str, RolloutInput] = {}
        for row in env.get_dataset():
            key = _key(row["prompt"])
            if key in self._rows and any(row.get(name) != self._rows[key].get(name) for name in ("answer", "info")):
                raise ConfigError(
                    f"two rows of the environment have one prompt and different answers, and TRL passes the prompt "
                    f"alone: {key:.200}"
                )
            self._rows.setdefault(key, cast(RolloutInput, row))
        self._directory = tempfile.TemporaryDirectory(prefix="whet-trl-")
        self._policy: Policy | None = None
        self._step: int | None = None

    def __call__(self, prompts: list[Any], trainer: Any) -> Rollouts:
        policy = self._updated(trainer)
        return run_sync(self._rollouts(policy, prompts, trainer))

    def _updated(self, trainer: Any) -> Policy:
        """The policy with the trainer's weights."""
        step = int(trainer.state.global_step)
        if self._policy is not None and step == self._step:
            return self._policy
        model, directory = trainer.accelerator.unwrap_model(trainer.model), Path(self._directory.name)
        kind = str(trainer.accelerator.distributed_type).rpartition(".")[2]
        if hasattr(model, "peft_config"):
            raise ConfigError("whet samples for TRL from whole models, and this one has an adapter (peft_config).")
        if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
            raise ConfigError(f"whet samples for TRL from models that each process has whole, not from {kind}.")
        model.save_pretrained(directory, max_shard_size="1000GB")
        if self._policy is None:
            trainer.processing_class.save_pretrained(directory)
            seed = int(trainer.args.seed) + int(trainer.accelerator.process_index)
            device = str(trainer.accelerator.device)
            self._policy = load_policy(str(directory), device=device, seed=seed, repeatable=False)
        else:
            update = WeightUpdate(version=step, path=directory / "model.safetensors")
            run_sync(self._policy.engine.load_weights(update))
        self._step = step
        return self._policy

    async def _rollouts(self, policy: Policy, prompts: Sequence[Any], trainer: Any) -> Rollouts:
        groups: dict[str, list[int]] = {}
        for index, prompt in enumerate(prompts):
            groups.setdefault(_key(prompt), []).append(index)
        args = _sampling_args(trainer.args)

        async def group(key: str, indices: Sequence[int]) -> list[State]:
            inputs = [self._row(key)] * len(indices)
            return await run_group(self._env, inputs, policy.client, "policy", args, max_retries=self._max_retries)

        states: dict[int, State] = {}
        done = await asyncio.gather(*(group(key, indices) for key, indices in groups.items()))
        for indices, group_states in zip(groups.values(), done, strict=True):
            states.update(zip(indices, group_states, strict=True))
        entries = [self._entry(states[index], prompts[index], policy, args) for index in range(len(prompts))]
        return {name: [entry[name] for entry in entries] for name in entries[0]}

    def _row(self, key: str) -> RolloutInput:
        row = self._rows.get(key)
        if row is None:
            raise ConfigError(f"no training row of the environment has this prompt; use rows(env) as data: {key:.200}")
        return row

    def _entry(self, state: State, prompt: Any, policy: Policy, args: SamplingArgs) -> dict[str, Any]:
        """One rollout in TRL's form."""
        failed = state["error"] is not None or state["reward"] is None
        sequence = None if failed else one_sequence(state, float(args["temperature"]))
        if sequence is None:
            pad = policy.renderer.stop_token_ids[0]
            ids = policy.renderer.render(state["prompt"] or prompt, None)
            reward = None if failed else state["reward"]
            return {"prompt_ids": ids, "completion_ids": [pad], "logprobs": [0.0], "env_mask": [0], "rewards": reward}
        return {
            "prompt_ids": sequence.prompt_ids,
            "completion_ids": sequence.response_ids,
            "logprobs": sequence.logprobs,
            "env_mask": sequence.mask,
            "rewards": float(state["reward"]),
        }


def _key(prompt: Any) -> str:
    """What makes two prompts the same: roles and contents, of messages that a table may have given further keys."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, str) or not all(isinstance(m, Mapping) for m in prompt):
        raise ConfigError(f"prompts should be lists of messages, as rows(env) has them, not {prompt!r:.80}")
    return json.dumps([[message.get("role"), message.get("content")] for message in prompt], ensure_ascii=False)


def _sampling_args(args: Any) -> SamplingArgs:
    given: SamplingArgs = {"temperature": float(args.temperature), "max_tokens": int(args.max_completion_length)}
    top_p, top_k, min_p = (getattr(args, name, None) for name in ("top_p", "top_k", "min_p"))
    return given | {name: value for name, value in (("top_p", top_p), ("top_k", top_k), ("min_p", min_p)) if value}
