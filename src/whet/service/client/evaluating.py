"""From an evaluation or a prompt search to what is submitted of it.

Checked here, as those commands do before they begin: the options, models that are on this machine, and the
environments that are installed here, by loading them; of a search also its plan. The rest is left to the run.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from whet.calls import call_all
from whet.config import read_toml
from whet.envs.environment import Environment
from whet.errors import ConfigError
from whet.evals.config import EvalConfig
from whet.evals.environment import open_environment
from whet.evals.model import check_models
from whet.evals.planning.plan import plan_evals
from whet.gepa.config import GepaConfig
from whet.gepa.run import run_search
from whet.gepa.types import SearchObserver
from whet.service.answers import ServiceAnswer
from whet.service.client.files import SubmissionFiles
from whet.service.client.packed import (
    MIB,
    Packed,
    check_reachable,
    is_here,
    needs_of,
    sampling_memory,
    submit_arguments,
    submitted_model,
    variables,
)
from whet.system import cancellation

OF_THIS_MACHINE = {"env_file", "short_name", "varied", "save", "output_directory", "resume", "endpoints"}
ENDPOINTS = "endpoints.toml"
ANSWER_TOKENS = 2048
"""Of one answer where a config sets no limit."""
OWN_MEMORY = 512 * MIB
"""Of a run whose models are all behind endpoints."""


def pack_evaluations(
    targets: Sequence[str],
    given: Mapping[str, Any],
    name: str | None,
    service: ServiceAnswer,
    url: str,
    secrets: Mapping[str, str],
) -> Packed:
    """What is submitted of `whet eval run` with these arguments; `url` is the service's.

    Raises `WhetError` for what that would refuse, as far as it is known here.
    """
    configs = plan_evals(targets, given, elsewhere=True)
    files, notes, tables = SubmissionFiles(), list[str](), []
    with variables(secrets):
        _rehearse_evaluations(configs, notes)
    for config in configs:
        table = config.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude=OF_THIS_MACHINE)
        for key in sorted(config.model_fields_set & {"resume", "output_directory", "save"}):
            notes.append(f"{key} has no effect: the service keeps every result with the run")
        where = f"evaluation of {config.environment}"
        submit_arguments(table, where, files)
        _submit_model(config, table, "model", files, service, notes, url)
        tables.append(table)
    whole: dict[str, Any] = {"eval": tables}
    _submit_endpoints(configs, whole, files, url)
    first = configs[0]
    chosen = name or _name(f"{first.label}-{first.short_name or first.model}")
    return Packed("evaluation", chosen, first.model, whole, files, _needs(configs, service, notes), notes)


def pack_search(config: GepaConfig, service: ServiceAnswer, url: str, secrets: Mapping[str, str]) -> Packed:
    """What is submitted of `whet gepa run`; `url` is the service's.

    Raises `WhetError` for what that would refuse, as far as it is known here.
    """
    files, notes = SubmissionFiles(), list[str]()
    with variables(secrets):
        _rehearse_search(config, notes)
    left_out = {"env_file", "runs_directory", "endpoints"}
    tables = config.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude=left_out)
    for section in tables["env"]:
        submit_arguments(section, f"[[env]] {section['id']}", files)
    policy, reflector = config.policy(), config.reflector()
    _submit_model(policy, tables, "model", files, service, notes, url)
    if config.reflection_model is not None:
        _submit_model(reflector, tables, "reflection_model", files, service, notes, url)
    check_reachable(config.base_url, "base_url", url)
    check_reachable(config.reflection_base_url, "reflection_base_url", url)
    _submit_endpoints([policy, reflector], tables, files, url)
    needs = _needs([policy, reflector], service, notes)
    return Packed("search", config.name, config.model, tables, files, needs, notes)


def _rehearse_evaluations(configs: Sequence[EvalConfig], notes: list[str]) -> None:
    check_models([one.model_copy(update=_elsewhere(one)) for one in configs])
    opened: list[Environment] = []
    try:
        for config in configs:
            if is_here(config.environment, notes):
                opened.append(open_environment(config.model_copy(update=_elsewhere(config))))
    finally:
        cancellation.run(call_all([env.close for env in opened]))


def _rehearse_search(config: GepaConfig, notes: list[str]) -> None:
    if [section.id for section in config.env if not is_here(section.id, notes)]:
        return
    with tempfile.TemporaryDirectory() as folder:
        changes = {**_elsewhere(config), "runs_directory": Path(folder), "env_file": ()}
        run_search(config.model_copy(update=changes), SearchObserver(), dry_run=True)


def _elsewhere(config: EvalConfig | GepaConfig) -> dict[str, Any]:
    """Which devices there are is for the service to know; and this process speaks to it."""
    return {"device": config.device if config.device == "auto" else "cpu", "offline": False}


def _submit_model(
    config: EvalConfig,
    table: dict[str, Any],
    key: str,
    files: SubmissionFiles,
    service: ServiceAnswer,
    notes: list[str],
    url: str,
) -> None:
    if config.short_name is not None:
        table[key] = config.short_name  # the file of endpoints says the rest
        table.pop("base_url", None)
    elif config.base_url is not None:
        check_reachable(config.base_url, "--base-url", url)
    else:
        table[key] = submitted_model(config.model, key.replace("_", " "), files, service.models, notes)


def _submit_endpoints(configs: Sequence[EvalConfig], tables: dict[str, Any], files: SubmissionFiles, url: str) -> None:
    """The short names that are used, in a file of endpoints that has no others."""
    used: dict[str, tuple[Path, list[dict[str, Any]]]] = {}
    for config in configs:
        if config.short_name is None:
            continue
        listed = read_toml(config.endpoints).get("endpoint", [])
        entries = [one for one in listed if one.get("endpoint_id") == config.short_name]
        before = used.setdefault(config.short_name, (config.endpoints, entries))
        if before[1] != entries:
            raise ConfigError(
                f"'{config.short_name}' is another endpoint in {before[0]} than in {config.endpoints}; rename one."
            )
        check_reachable(config.base_url, f"{config.endpoints}: '{config.short_name}'", url)
    if used:
        content = {"endpoint": [entry for _, entries in used.values() for entry in entries]}
        _refuse_secrets(content)
        files.add_as(ENDPOINTS, tomli_w.dumps(content).encode(), "endpoints")
        tables["endpoints"] = ENDPOINTS


def _refuse_secrets(content: Mapping[str, Any]) -> None:
    from whet.system.redaction import redacted, redacted_keys

    for entry in content["endpoint"]:
        plain = {key: value for key, value in entry.items() if key not in ("headers", "extra_headers", "key")}
        for name in redacted_keys(redacted(plain)):
            raise ConfigError(
                f"endpoint '{entry['endpoint_id']}': {name} has a secret in it, and would be shown to all who see the "
                "run. Name the variable that holds it as key, and give its value with --env-file."
            )


def _needs(configs: Sequence[EvalConfig], service: ServiceAnswer, notes: list[str]) -> dict[str, float]:
    """Of the largest of these evaluations, which run one after the other."""
    memory: dict[str, int] = {}
    for config in configs:
        if not config.local:
            continue
        needed = _memory(config)
        if needed is None:
            notes.append(f"memory: {config.model} is not on this machine, so it is not known; say it with --memory")
        elif sum(needed.values()) > sum(memory.values()):
            memory = needed
    local = [config for config in configs if config.local]
    threads = max((config.threads or 0 for config in configs), default=0)
    needs = needs_of(
        threads if local else 1, memory, [config.device for config in local], processes=1, largest=service.largest
    )
    if local and not threads and service.free_cores is not None and service.free_cores < needs["cores"]:
        needs["cores"] = max(1, int(service.free_cores))
        notes.append(f"cores: {needs['cores']}, as many as are free there now; say how many it waits for with --cores")
    return needs if local else {**needs, "memory": OWN_MEMORY}


def _memory(config: EvalConfig) -> dict[str, int] | None:
    from whet.rl.estimate import architecture
    from whet.rl.memory import parameter_count

    arch, _ = architecture(config.model)
    if arch is None:
        return None
    answer = min(config.max_tokens or ANSWER_TOKENS, arch.max_context)
    return sampling_memory(arch, parameter_count(arch), config.max_concurrent * answer, config.dtype)


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")[:80] or "evaluation"
