"""`opencode_harness` and `rlm_harness` of `verifiers.envs.experimental.composable.harnesses`.

OpenCode is the one of `whet agent list`. RLM is installed by `install.sh` of a checkout of its own, from this machine.
"""

from __future__ import annotations

import hashlib
import json
import random
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.compat.experimental.composable_env import ComposableHarness
from whet.compat.experimental.opencode_env import (
    DEFAULT_RUN_COMMAND_TEMPLATE,
    DEFAULT_SYSTEM_PROMPT,
    INSTALLED,
    opencode_config,
)
from whet.errors import ConfigError
from whet.types import State

__all__ = [
    "DEFAULT_DISABLED_TOOLS", "DEFAULT_RLM_EXEC_TIMEOUT", "DEFAULT_RLM_MAX_TURNS", "DEFAULT_RLM_REPO_URL",
    "DEFAULT_SYSTEM_PROMPT", "opencode_harness", "rlm_harness",
]  # fmt: skip
DEFAULT_DISABLED_TOOLS = [
    "apply_patch", "batch", "codesearch", "glob", "grep", "list", "lsp", "multiedit", "plan_enter", "plan_exit",
    "question", "read", "skill", "task", "todoread", "todowrite", "webfetch", "websearch", "write",
]  # fmt: skip
"""All of OpenCode but its shell and its editor."""
DEFAULT_RLM_REPO_URL = "github.com/PrimeIntellect-ai/rlm-harness.git"
DEFAULT_RLM_MAX_TURNS = 100
DEFAULT_RLM_EXEC_TIMEOUT = 300
RLM_FOLDER, RLM_PROMPT = "/tmp/rlm-checkout", "/task/append_to_system_prompt.txt"


def opencode_harness(
    system_prompt: str | None = DEFAULT_SYSTEM_PROMPT,
    task_system_prompt: str | None = None,
    disabled_tools: Sequence[str] | None = None,
    agent_workdir: str = "/app",
    disable_compaction: bool = True,
    instruction_path: str = "/opencode/prompt.txt",
    system_prompt_path: str = "/opencode/system.txt",
    log_path: str = "/opencode/logs.txt",
    provider_timeout_ms: int = 3_600_000,
    release_repo: str | None = None,
    release_version: str | None = None,
    release_sha256: str | None = None,
) -> ComposableHarness:
    """OpenCode as an agent; `release_*` have no effect."""
    prompt = "\n".join(part for part in (system_prompt, task_system_prompt) if part) or None
    config = opencode_config(
        disabled_tools, system_prompt_path if prompt else None, disable_compaction, True, provider_timeout_ms
    )
    run_command = DEFAULT_RUN_COMMAND_TEMPLATE.format(
        install_command=INSTALLED,
        config_json=config,
        agent_workdir=f'"${{AGENT_WORKDIR:-{agent_workdir}}}"',
        prompt_path=shlex.quote(instruction_path),
        logs_path=shlex.quote(log_path),
    )
    return ComposableHarness(
        run_command=run_command,
        system_prompt=prompt,
        instruction_path=instruction_path,
        system_prompt_path=system_prompt_path,
        log_path=log_path,
        agent="opencode",
    )


def rlm_harness(
    workdir: str = "/testbed",
    instruction_path: str = "/task/instruction.md",
    rlm_repo_url: str = DEFAULT_RLM_REPO_URL,
    rlm_ref: str = "main",
    rlm_max_turns: int = DEFAULT_RLM_MAX_TURNS,
    rlm_exec_timeout: int = DEFAULT_RLM_EXEC_TIMEOUT,
    rlm_max_depth: int = 0,
    summarize_at_tokens: int | Sequence[int] | None = None,
    include_sub_rlm_trajectories: bool = False,
    append_to_system_prompt: str | None = None,
    local_checkout: str | Path | None = None,
    gh_token: str | None = None,
    rlm_tools: Sequence[str] | None = None,
) -> ComposableHarness:
    """RLM as an agent, out of `local_checkout`; whet clones no repository, so `gh_token` has no effect."""
    tools = ["ipython"] if rlm_tools is None else list(rlm_tools)
    limits = _limits(summarize_at_tokens)
    fixed = {"TOOLS": ",".join(tools), "MAX_TURNS": rlm_max_turns, "EXEC_TIMEOUT": rlm_exec_timeout,
             "MAX_DEPTH": rlm_max_depth}  # fmt: skip

    def checkout() -> dict[str, Any]:
        if local_checkout is None or not (Path(local_checkout) / "install.sh").is_file():
            raise ConfigError(
                f"rlm_harness needs local_checkout: a folder with {rlm_repo_url} at {rlm_ref}, which has an install.sh "
                f"(got {local_checkout}). whet clones no repository."
            )
        return {"rlm_checkout": Path(local_checkout)}

    def variables(state: State) -> dict[str, str]:
        return {f"RLM_{name}": str(value) for name, value in fixed.items()} | _threshold(limits, state)

    script = f"""\
set -eo pipefail
export PATH="$HOME/.local/bin:$PATH" RLM_MODEL="$OPENAI_MODEL"
export RLM_APPEND_TO_SYSTEM_PROMPT="$(cat {RLM_PROMPT} 2>/dev/null || true)"
cd "${{AGENT_WORKDIR:-{workdir}}}"
rlm "$(cat {shlex.quote(instruction_path)})"
"""
    return ComposableHarness(
        install_script=f"RLM_CHECKOUT_PATH={RLM_FOLDER} bash {RLM_FOLDER}/install.sh",
        run_command=f"bash -c {shlex.quote(script)}",
        system_prompt=append_to_system_prompt,
        system_prompt_path=RLM_PROMPT,
        instruction_path=instruction_path,
        skills_path="/task/rlm-skills",
        get_upload_dirs=checkout,
        upload_dir_mapping={"rlm_checkout": RLM_FOLDER},
        metrics_path="{workdir}/.rlm/sessions/*/meta.json",
        metrics_key="metrics",
        metrics_prefix="rlm_",
        tool_names=tools,
        environment_vars=variables,
        keep_trajectory_step=None if include_sub_rlm_trajectories else _is_of_parent,
    )


def _is_of_parent(step: Any, state: State, headers: dict[str, str]) -> bool:
    """RLM numbers the depth of its helpers in a header of their requests."""
    return headers.get("x-rlm-depth", "0") == "0"


def _limits(given: int | Sequence[int] | None) -> list[int]:
    limits = [] if given is None else [given, given] if isinstance(given, int) else list(given)
    if limits and (len(limits) != 2 or not 0 < limits[0] <= limits[1]):
        raise ConfigError(f"summarize_at_tokens should be a number above 0 or two of them in order, not {given!r}.")
    return limits


def _threshold(limits: list[int], state: State) -> dict[str, str]:
    """A number between the limits that all rollouts of a prompt share."""
    if not limits:
        return {}
    prompt = state["input"].get("prompt")
    text = prompt if isinstance(prompt, str) else json.dumps(state.get("prompt"), sort_keys=True, default=str)
    seed = int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)
    return {"RLM_SUMMARIZE_AT_TOKENS": str(random.Random(seed).randint(*limits))}
