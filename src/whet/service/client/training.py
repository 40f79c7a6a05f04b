"""From a config of `whet train run` or `whet train sft` to what is submitted of it.

Checked here, as the dry run does it: the file, imported algorithms, models and data that are on this machine, and the
environments that are installed here, by loading them. Left to the service: devices, models and environments that are
not here, quotas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.config import read_toml
from whet.envs.identity.ids import parse_id
from whet.rl.config import RunConfig, load_run_config
from whet.rl.sections.algorithm import INITIAL
from whet.rl.sections.training import TrainingEnvConfig
from whet.rl.sft.config import SftConfig, load_sft_config
from whet.service.answers import ServiceAnswer
from whet.service.client.files import SubmissionFiles, add_modules
from whet.service.client.packed import (
    Kind,
    Packed,
    check_reachable,
    is_here,
    needs_of,
    submit_arguments,
    submitted_adapter,
    submitted_model,
    variables,
)

NOT_SENT = ("env_file", "runs_directory")


def load_config(path: Path, overrides: Sequence[str]) -> RunConfig | SftConfig:
    """The config of either command: one with [data] and no [[env]] is of fine-tuning. Raises `ConfigError`."""
    data = read_toml(path)
    if "data" in data and "env" not in data:
        return load_sft_config(path, list(overrides))
    return load_run_config(path, list(overrides))


def pack(config: RunConfig | SftConfig, service: ServiceAnswer, secrets: Mapping[str, str], service_url: str) -> Packed:
    """What is submitted of a config. Raises `WhetError` for what a run would refuse, as far as that is known here."""
    notes: list[str] = []
    for url in config.inference.base_url:
        check_reachable(url, "inference.base_url", service_url)
    on_cpu = _without_devices(config)
    with variables(secrets):
        _rehearse(on_cpu, notes)
        needs = _needs(config, on_cpu, service, notes)
    files = SubmissionFiles()
    tables = config.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude=set(NOT_SENT))
    tables["model"] = submitted_model(config.model, "model", files, service.models, notes)
    if config.lora is not None and config.lora.path is not None:
        tables["lora"]["path"] = submitted_adapter(config.lora.path, "[lora] path", files)
    sections = [*tables.get("env", ()), *tables.get("eval", {}).get("env", ())]
    for section in sections:
        submit_arguments(section, f"[[env]] {section['id']}", files)
    if isinstance(config, RunConfig):
        _submit_code(config, tables, files, service, notes)
    else:
        for name in ("data", "validation"):
            if (path := tables.get(name, {}).get("path")) is not None:
                tables[name]["path"] = files.add(Path(path), f"[{name}] path")
    if config.reference is not None and config.reference != INITIAL:
        section = "algorithm" if isinstance(config, RunConfig) else "dpo"
        where = f"[{section}] reference"
        tables[section]["reference"] = submitted_model(config.reference, where, files, service.models, notes)
    if config.wandb is not None and not config.wandb.offline and "WANDB_API_KEY" not in secrets:
        notes.append("[wandb] needs WANDB_API_KEY: give it with -e WANDB_API_KEY, unless it is a secret of the service")
    kind: Kind = "training" if isinstance(config, RunConfig) else "sft"
    return Packed(kind, config.name, config.model, tables, files, needs, notes)


def _submit_code(
    config: RunConfig, tables: dict[str, Any], files: SubmissionFiles, service: ServiceAnswer, notes: list[str]
) -> None:
    """Modules that are named by import path."""
    own = frozenset(parse_id(env.id).module for env in (*config.env, *config.eval.env))
    algorithm = config.algorithm
    for where, reference in (
        ("buffer.curriculum", config.buffer.curriculum),
        ("[algorithm] advantage", algorithm.advantage),
        ("[algorithm] loss", algorithm.loss),
    ):
        if reference is not None:
            add_modules(reference, where, files, own)


def _without_devices(config: RunConfig | SftConfig) -> RunConfig | SftConfig:
    """The same run on CPUs: which devices there are is for the service to know. GPUs that it demands are counted."""
    if _demands_gpus(config):
        return config
    parts = {"learner": config.learner, "inference": config.inference}
    return config.model_copy(
        update={name: section.model_copy(update={"device": "cpu"}) for name, section in parts.items()}
    )


def _rehearse(config: RunConfig | SftConfig, notes: list[str]) -> None:
    from whet.rl.plan import rehearse

    def present(environments: Sequence[TrainingEnvConfig]) -> tuple[TrainingEnvConfig, ...]:
        return tuple(env for env in environments if is_here(env.id, notes))

    held_out = config.eval.model_copy(update={"env": present(config.eval.env)})
    if isinstance(config, RunConfig):
        rehearse(config.model_copy(update={"env": present(config.env), "eval": held_out}))
        if config.buffer.curriculum is not None:
            from whet.tasksets.refs import resolve_function

            resolve_function(config.buffer.curriculum, "buffer.curriculum")
    else:
        rehearse(config.model_copy(update={"eval": held_out}))


def _needs(
    config: RunConfig | SftConfig, on_cpu: RunConfig | SftConfig, service: ServiceAnswer, notes: list[str]
) -> dict[str, float]:
    from whet.rl.memory import PROCESSES
    from whet.rl.plan import plan_training

    estimate = plan_training(on_cpu).estimate
    if not estimate.memory:
        notes.append(f"memory: {config.model} is not on this machine, so it is not known; say it with --memory")
    devices = [config.learner.device, *[config.inference.device] * config.samples]
    if isinstance(config, RunConfig) and _demands_gpus(config):
        devices = [f"cuda:{plan_training(config).placement.gpus - 1}"]
    processes = 1
    if isinstance(config, RunConfig):
        processes += config.gpus.servers if config.engine == "vllm" else config.engine_process
    memory = {name: size for name, size in estimate.memory.items() if name != PROCESSES}  # counted by `processes`
    return needs_of(config.deployment.threads, memory, devices, processes=processes, largest=service.largest)


def _demands_gpus(config: RunConfig | SftConfig) -> bool:
    return isinstance(config, RunConfig) and config.gpus.demanded
