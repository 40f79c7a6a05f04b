"""`OpenCodeEnv` and `OpenCodeQAEnv` of `verifiers.envs.experimental`: OpenCode (opencode.ai) attempts the tasks.

`opencode` is the one of `whet agent list`, shown in the sandbox, which has no network to install it: `install_command`
has no effect, and lines of a run command that begin with `apt-get` are left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar

from whet.compat.experimental.cli_agent_env import CliAgentEnv
from whet.errors import ConfigError
from whet.rubrics.rubric import Rubric
from whet.tasksets.agents.installed import agent_folder
from whet.tasksets.agents.presets import find_agent
from whet.tasksets.agents.program import ARCH, INSIDE
from whet.types import Messages, Response, State

__all__ = [
    "DEFAULT_RUN_COMMAND_TEMPLATE", "DEFAULT_SYSTEM_PROMPT", "OPENCODE_TOOLS", "OpenCodeEnv", "OpenCodeMonitorRubric",
]  # fmt: skip
OPENCODE_TOOLS = [
    "bash", "edit", "write", "read", "grep", "glob", "skill", "todowrite", "webfetch", "websearch", "codesearch",
    "task", "question",
]  # fmt: skip
PRESET = find_agent("opencode")
_PROGRAM = PurePosixPath(PRESET.command[0].replace("{root}", INSIDE).replace("{arch}", ARCH))
INSTALLED = f'export PATH="{_PROGRAM.parent}:$PATH"; command -v opencode'
DEFAULT_SYSTEM_PROMPT = "You are a coding agent in a terminal. Solve the task with your tools, and answer briefly.\n"
DEFAULT_RUN_COMMAND_TEMPLATE = """\
set -eo pipefail
{install_command}
mkdir -p ~/.config/opencode
case "$OPENAI_MODEL" in */*) ;; *) export OPENAI_MODEL="whet/$OPENAI_MODEL" ;; esac
SCHEMA_DOLLAR='$'
cat > ~/.config/opencode/opencode.json << EOFCONFIG
{config_json}
EOFCONFIG
cd {agent_workdir}
opencode run < {prompt_path} 2>&1 | tee {logs_path}
"""
_INSTALLS = re.compile(r"^\s*apt-get\b.*\n?", re.MULTILINE)


class OpenCodeMonitorRubric(Rubric):
    """Records how often OpenCode's tools were called: in all, how many different ones, and each."""

    def __init__(self, tool_names: list[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tool_names = list(tool_names or OPENCODE_TOOLS)
        for metric in (self.total_tool_calls, self.unique_tools_used, self.has_tool_calls):
            self.add_metric(metric)
        for name in self.tool_names:
            self.add_metric(self._count_of(name))

    def total_tool_calls(self, completion: Messages) -> float:
        return float(_calls(completion).total())

    def unique_tools_used(self, completion: Messages) -> float:
        return float(len(_calls(completion)))

    def has_tool_calls(self, completion: Messages) -> float:
        return float(bool(_calls(completion)))

    @staticmethod
    def _count_of(name: str) -> Callable[[Messages], float]:
        def count(completion: Messages) -> float:
            return float(_calls(completion)[name])

        count.__name__ = f"{name}_calls"
        return count


def _calls(completion: Messages) -> Counter[str]:
    return Counter(call["name"] for message in completion for call in message.get("tool_calls") or ())


class OpenCodeEnv(CliAgentEnv):
    """OpenCode attempts the tasks, whose prompt is its task."""

    DEFAULT_AGENT_WORKDIR = "/app"
    DEFAULT_ASSET_DIR = "/opencode"
    DEFAULT_DISABLED_TOOLS: ClassVar = ["question", "task"]  # one needs a user, the other begins other conversations
    DEFAULT_INSTALL_COMMAND = INSTALLED
    DEFAULT_RUN_COMMAND_TEMPLATE = DEFAULT_RUN_COMMAND_TEMPLATE
    DEFAULT_SYSTEM_PROMPT: str | None = DEFAULT_SYSTEM_PROMPT
    DEFAULT_PROVIDER_TIMEOUT_MS = 3_600_000
    DEFAULT_DISABLE_COMPACTION = True
    DEFAULT_ENABLE_INTERLEAVED = True
    DEFAULT_INCLUDE_TASK_SYSTEM_PROMPT = False
    DEFAULT_TASK_SYSTEM_PROMPT = ""

    def __init__(
        self,
        dataset: Any,
        asset_dir: str = DEFAULT_ASSET_DIR,
        agent_workdir: str = DEFAULT_AGENT_WORKDIR,
        disabled_tools: list[str] = DEFAULT_DISABLED_TOOLS,
        system_prompt: str | None = DEFAULT_SYSTEM_PROMPT,
        install_command: str = INSTALLED,
        run_command_template: str = DEFAULT_RUN_COMMAND_TEMPLATE,
        disable_compaction: bool = DEFAULT_DISABLE_COMPACTION,
        enable_interleaved: bool = DEFAULT_ENABLE_INTERLEAVED,
        provider_timeout_ms: int = DEFAULT_PROVIDER_TIMEOUT_MS,
        task_system_prompt: str = DEFAULT_TASK_SYSTEM_PROMPT,
        include_task_system_prompt: bool = DEFAULT_INCLUDE_TASK_SYSTEM_PROMPT,
        **kwargs: Any,
    ) -> None:
        """Make an environment; the arguments are those of 0.1.14, and `kwargs` those of `CliAgentEnv`."""
        self.asset_dir, self.agent_workdir, self.disabled_tools = asset_dir, agent_workdir, disabled_tools
        self.provider_timeout_ms = provider_timeout_ms
        if system_prompt is not None and include_task_system_prompt:
            system_prompt += f"\n{task_system_prompt}"
        run_command = self.build_run_command(
            _INSTALLS.sub("", run_command_template),
            agent_workdir,
            disabled_tools=disabled_tools,
            system_prompt=system_prompt,
            install_command=INSTALLED,
            disable_compaction=disable_compaction,
            enable_interleaved=enable_interleaved,
        )
        super().__init__(run_command=run_command, dataset=dataset, system_prompt=system_prompt, **kwargs)
        self.add_rubric(OpenCodeMonitorRubric())

    @property
    def remote_system_prompt_path(self) -> str:
        return f"{self.asset_dir}/system.txt"

    @property
    def remote_prompt_path(self) -> str:
        return f"{self.asset_dir}/prompt.txt"

    @property
    def remote_logs_path(self) -> str:
        return f"{self.asset_dir}/logs.txt"

    def writable_folders(self, state: State) -> list[str]:
        return [*super().writable_folders(state), self.asset_dir, self.agent_workdir]

    async def read_only_folders(self, state: State) -> dict[str, str]:
        """OpenCode itself, installed into whet's cache unless it is there."""
        folder = await agent_folder(PRESET, PRESET.version, self.sandbox_client)
        return {**await super().read_only_folders(state), INSIDE: str(folder)}

    async def build_env_vars(self, state: State) -> dict[str, str]:
        return {**PRESET.env, **await super().build_env_vars(state)}

    async def post_sandbox_setup(self, state: State) -> None:
        """Upload the prompt and the system prompt."""
        sandbox_id = state["sandbox_id"]
        await self.sandbox_client.execute_command(sandbox_id, f"mkdir -p {self.asset_dir} {self.agent_workdir}")
        await self.upload_content(sandbox_id, self.build_prompt(state), self.remote_prompt_path)
        if self.system_prompt:
            await self.upload_content(sandbox_id, self.system_prompt, self.remote_system_prompt_path)

    async def normalize_response(self, response: Response) -> Response:
        """The response as OpenCode sends it back: names of tools in lower case, arguments without spaces."""
        message = response["message"]
        calls = [call.model_copy(update=_as_sent(call)) for call in message.get("tool_calls") or ()]
        changes = {"content": message.get("content") or "", "tool_calls": calls or None}
        return response.model_copy(update={"message": message.model_copy(update=changes)})

    async def post_rollout(self, state: State) -> None:
        """Read OpenCode's log into `state["agent_logs"]`."""
        if state.get("sandbox_id"):
            log = await self.read_file(state["sandbox_id"], self.remote_logs_path)
            state["agent_logs"] = "<no logs>" if log is None else log.strip()
        await super().post_rollout(state)

    def build_prompt(self, state: State) -> str:
        """The task, as OpenCode is given it."""
        return str(state["prompt"][-1]["content"])

    def build_opencode_config(
        self,
        disabled_tools: list[str] | None = None,
        system_prompt_path: str | None = None,
        disable_compaction: bool = True,
        enable_interleaved: bool = True,
    ) -> str:
        """OpenCode's configuration, in which the shell replaces variables."""
        timeout = self.provider_timeout_ms
        return opencode_config(disabled_tools, system_prompt_path, disable_compaction, enable_interleaved, timeout)

    def build_run_command(
        self,
        run_command_template: str,
        agent_workdir: str,
        disabled_tools: list[str] | None = None,
        system_prompt: str | None = None,
        install_command: str = INSTALLED,
        disable_compaction: bool = True,
        enable_interleaved: bool = True,
    ) -> str:
        """The shell command that configures and runs OpenCode."""
        config = self.build_opencode_config(
            disabled_tools,
            self.remote_system_prompt_path if system_prompt else None,
            disable_compaction=disable_compaction,
            enable_interleaved=enable_interleaved,
        )
        try:
            return run_command_template.format(
                config_json=config,
                agent_workdir=agent_workdir,
                prompt_path=self.remote_prompt_path,
                logs_path=self.remote_logs_path,
                install_command=install_command,
            )
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(f"run_command_template names a field that there is not: {error}.") from error


def opencode_config(
    disabled_tools: Sequence[str] | None,
    system_prompt_path: str | None,
    disable_compaction: bool,
    enable_interleaved: bool,
    provider_timeout_ms: int,
) -> str:
    """OpenCode's configuration (https://opencode.ai/config.json), in which the shell replaces variables."""
    model: dict[str, Any] = {
        "name": "${OPENAI_MODEL##*/}",
        "modalities": {"input": ["text", "image"], "output": ["text"]},
        "interleaved": {"field": "reasoning_content"} if enable_interleaved else False,
    }
    options = {"baseURL": "$OPENAI_BASE_URL", "apiKey": "$OPENAI_API_KEY", "timeout": provider_timeout_ms}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "${OPENAI_MODEL%%/*}", "options": options}
    config: dict[str, Any] = {
        "${SCHEMA_DOLLAR}schema": "https://opencode.ai/config.json",
        "provider": {"${OPENAI_MODEL%%/*}": {**provider, "models": {"${OPENAI_MODEL##*/}": model}}},
        "model": "$OPENAI_MODEL",
        "autoupdate": False,
        "share": "disabled",
    }
    build: dict[str, Any] = {"prompt": f"{{file:{system_prompt_path}}}"} if system_prompt_path else {}
    build |= {"tools": dict.fromkeys(disabled_tools, False)} if disabled_tools else {}
    config |= {"compaction": {"auto": False, "prune": False}} if disable_compaction else {}
    config["agent"] = {"title": {"disable": True}, **({"build": build} if build else {})}
    return json.dumps(config, indent=2)


def _as_sent(call: Any) -> dict[str, Any]:
    try:
        arguments = json.dumps(json.loads(call["arguments"]), separators=(",", ":"), ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        arguments = call["arguments"]
    return {"name": call["name"].lower(), "arguments": arguments}


class OpenCodeQAEnv(OpenCodeEnv):
    """OpenCode answers the questions of a data set of the Hugging Face hub."""

    def __init__(
        self,
        rubric: Rubric,
        dataset_name: str,
        dataset_subset: str,
        dataset_split: str,
        question_key: str = "question",
        answer_key: str = "answer",
        instruction_prompt: str = "",
        instruction_prompt_post: str = "",
        difficulty_key: str | None = None,
        min_avg_reward: float = 0.0,
        max_avg_reward: float = 1.0,
        **kwargs: Any,
    ) -> None:
        """Make an environment; rows whose `difficulty_key` is outside of the two averages are left out."""
        from datasets import load_dataset

        rows = load_dataset(dataset_name, dataset_subset, split=dataset_split)
        for key in (question_key, answer_key):
            if key not in rows.column_names:
                raise ConfigError(f"{dataset_name} has no column '{key}'; it has {', '.join(rows.column_names)}.")
        if difficulty_key in rows.column_names:
            rows = rows.filter(lambda row: min_avg_reward <= row[difficulty_key] <= max_avg_reward)
        questions = [f"{instruction_prompt}{question}{instruction_prompt_post}" for question in rows[question_key]]
        dataset = [{"question": one, "answer": answer} for one, answer in zip(questions, rows[answer_key], strict=True)]
        super().__init__(dataset=dataset, rubric=rubric, **kwargs)
