"""`python -m whet.integrations.rllm`: rLLM trains a model on an environment of whet.

    python -m whet.integrations.rllm +backend=tinker tinker_base_url=http://127.0.0.1:8700 \
        model.name=Qwen/Qwen3-0.6B +verifiers.env_id=reverse-text training.group_size=8

It takes the keys of rLLM's page on environments of verifiers (docs/from-rllm.md) for both backends, and translates
those that the unified trainer has elsewhere. Everything else is Hydra's: `--cfg job` prints the config.

Source of the interfaces: rLLM 0.3, `rllm/trainer/unified_trainer.py`, `rllm/trainer/config`, `examples/verifiers_env`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

from whet.envs.loading import load_environment
from whet.errors import ConfigError, WhetError

_CONFIGS = ("tinker_rl_trainer", "agent_ppo_trainer", "unified")
_OF_TINKER = {  # keys of the page, or what they begin with, and where the unified trainer has them
    "training.val_group_size": ("validation.group_size",),
    "trainer.default_local_dir": ("training.default_local_dir",),
    "sampling.": ("rllm.rollout.train.", "rllm.rollout.val."),
    "val_sampling.": ("rllm.rollout.val.",),
    "algorithm.": ("rllm.algorithm.",),
    "trainer.": ("rllm.trainer.",),
    "workflow.": ("rllm.workflow.",),
}
_DEFAULTS_OF_TINKER = (  # of the trainer of the page, where the unified one has none or others
    "training.group_size=16",
    "validation.group_size=1",
    "data.max_response_length=2048",
    "rllm.algorithm.norm_adv_by_std_in_grpo=false",
)


def translated(arguments: Sequence[str]) -> list[str]:
    """The page's arguments for Hydra and the unified trainer. Raises `ConfigError` for another config or backend."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-name", default="unified")
    options, others = parser.parse_known_args(arguments)
    backend = next((other.partition("=")[2] for other in reversed(others) if other.startswith("+backend=")), "verl")
    for value, known in ((options.config_name, _CONFIGS), (backend, ("verl", "tinker"))):
        if value not in known:
            raise ConfigError(
                f"{value}: configs are {', '.join(_CONFIGS)}; backends are verl (the default) and tinker."
            )
    written = [f"rllm/backend={backend}", *(_DEFAULTS_OF_TINKER if backend == "tinker" else ())]
    for other in others:
        key, _, value = other.partition("=")
        if key.startswith("verifiers."):  # as a script of the page has it, which Hydra refuses
            key, other = f"+{key}", f"+{other}"
        name = next((own for own in _OF_TINKER if key == own or (own[-1] == "." and key.startswith(own))), None)
        if key in ("+verifiers.env_args", "+verifiers.sampling_args") and value.lstrip().startswith('{"'):
            try:  # JSON, whose keys have quotes, as Hydra reads it
                parsed = json.loads(value)
            except ValueError as error:
                raise ConfigError(f"{key} is no JSON ({error}).") from None
            written += [f"+{key.lstrip('+')}.{part}={_for_hydra(item)}" for part, item in parsed.items()]
        elif backend == "tinker" and name is not None:
            written += [f"{own}{key.removeprefix(name)}={value}" for own in _OF_TINKER[name]]
        elif key != "+backend":
            written.append(other)
    return written


def _for_hydra(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_for_hydra(item)}" for key, item in value.items()) + "}"
    return f"[{','.join(map(_for_hydra, value))}]" if isinstance(value, list) else json.dumps(value)


def train(config: Any) -> None:
    """Train as a config of the unified trainer with a section `verifiers` says. Raises `ConfigError`."""
    from omegaconf import OmegaConf
    from rllm.data import Dataset
    from rllm.trainer.unified_trainer import AgentTrainer

    from whet.integrations.rllm import EnvTasks, EnvWorkflow

    section = dict(OmegaConf.to_container(config.get("verifiers", OmegaConf.create({})), resolve=True))
    env_id, env_args = section.pop("env_id", None), section.pop("env_args", None) or {}
    sampling_args, most = section.pop("sampling_args", None), section.pop("max_samples", None) or -1
    if section or not env_id:
        wrong = f"verifiers.{next(iter(section))} is no key" if section else "no environment is named"
        raise ConfigError(f"{wrong}: give +verifiers.env_id=ID; env_args, sampling_args and max_samples may follow.")
    env = load_environment(env_id, **env_args)
    synchronised(config)
    tasks = EnvTasks(
        env_id if config.rllm.backend == "verl" else env,  # verl's trainer is another process
        env_args,
        sampling_args=sampling_args,
        group_size=int(config.rllm.rollout.n),
        val_group_size=int(config.rllm.rollout.n_val),
        max_concurrent=int(config.rllm.workflow.n_parallel_tasks),
    )
    data = [[dict(row) for row in rows] for rows in (env.get_dataset(most), env.get_eval_dataset(most))]
    AgentTrainer(
        config=config,
        workflow_class=EnvWorkflow,
        workflow_args={"tasks": tasks},
        train_dataset=Dataset(data[0], name=env_id, split="train"),
        val_dataset=Dataset(data[1], name=env_id, split="test"),
        backend=config.rllm.backend,
    ).train()


def synchronised(config: Any) -> None:
    """Settings that a backend and rLLM have under two names, made the same as rLLM's launchers do later."""
    importlib.import_module(f"rllm.trainer.{config.rllm.backend}.utils").sync_config(config)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command. Mistakes in the arguments end it with one line."""
    import hydra  # rLLM brings it

    def run(config: Any) -> None:
        try:
            train(config)
        except WhetError as error:
            raise SystemExit(f"error: {error}") from None

    try:
        sys.argv[1:] = translated(sys.argv[1:] if arguments is None else arguments)
    except WhetError as error:
        raise SystemExit(f"error: {error}") from None
    hydra.main(config_path="pkg://rllm.trainer.config", config_name="unified", version_base=None)(run)()


if __name__ == "__main__":
    main()
