"""`ComposableEnv` and `Harness` of `verifiers.envs.experimental.composable`: a `CliAgentEnv` of a taskset and an agent.

TaskSet: instruction, sandbox, scoring      Harness: how to install and run the agent, and where it reads what
"""

from __future__ import annotations

import asyncio
import importlib.resources
import json
import shlex
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from whet.calls import describe
from whet.compat.experimental.cli_agent_env import CliAgentEnv
from whet.compat.experimental.composable_tasks import SandboxSpec, TaskSet
from whet.decorators import cleanup
from whet.envs.tool_env import ToolMonitorRubric
from whet.errors import ConfigError, SandboxError
from whet.rubrics.rubric import Rubric
from whet.tasksets.agents.installed import agent_folder
from whet.tasksets.agents.presets import find_agent
from whet.tasksets.agents.program import INSIDE
from whet.types import State, TrajectoryStep

LEFT_OUT = (".git", ".venv", "venv", "__pycache__", ".*_cache", ".uv-cache", ".tox", "node_modules", "*.py[co]")
"""Of uploaded folders: history, virtual environments and caches."""


@dataclass
class ComposableHarness:
    """How an agent is installed and run in a sandbox; the fields are those of `Harness` in 0.1.14."""

    install_script: str | None = None
    install_timeout: int = 300  # seconds
    run_command: str = ""
    system_prompt: str | None = None
    system_prompt_path: str = "/task/system_prompt.txt"
    instruction_path: str = "/task/instruction.md"
    log_path: str | None = None
    sandbox_spec: SandboxSpec | None = None  # for tasks that have none
    skills_path: str | None = None
    upload_dir_mapping: dict[str, str] | None = None
    get_upload_dirs: Callable[[], dict[str, Traversable | Path] | None] | None = None
    metrics_path: str | None = None  # a glob of a JSON file, which may have {workdir}
    metrics_prefix: str = ""
    metrics_key: str | None = None
    metrics_keys: list[str] | None = None
    tool_names: list[str] | None = None
    environment_vars: Callable[[State], dict[str, str]] | None = None
    post_install_uploads: dict[str, str] | None = None
    post_install_script: str | None = None
    keep_trajectory_step: Callable[[TrajectoryStep, State, Any], bool] | None = None
    agent: str | None = None  # of `whet agent list`, not of 0.1.14: shown in the sandbox, installed if need be

    def get_effective_upload_dir_mapping(self) -> dict[str, str] | None:
        skills = {"skills": self.skills_path} if self.skills_path else {}
        return {**skills, **(self.upload_dir_mapping or {})} or None


class HarnessMetricsRubric(Rubric):
    """Adds the numbers of the harness's own metrics file to a rollout's metrics, once it is scored."""

    @cleanup
    async def add_harness_metrics(self, state: State) -> None:
        state["metrics"] = {**(state.get("metrics") or {}), **state.get("_harness_metrics", {})}


class ComposableEnv(CliAgentEnv):
    """An agent (`Harness`) attempts the tasks of a `TaskSet`."""

    def __init__(
        self, taskset: TaskSet, harness: ComposableHarness, *, install_env: dict[str, str] | None = None, **kwargs: Any
    ) -> None:
        """`install_env` is for the harness's scripts; kwargs are those of `CliAgentEnv`."""
        kwargs["dataset"] = taskset.get_dataset
        if "rubric" not in kwargs:
            kwargs["rubric"] = taskset.get_rubric()
        super().__init__(run_command=harness.run_command, **kwargs)
        self.taskset, self.harness = taskset, harness
        self.install_env = dict(install_env) if install_env else None
        if harness.tool_names:
            self.add_rubric(ToolMonitorRubric(tool_names=list(harness.tool_names)))
        if harness.metrics_path:
            self.add_rubric(HarnessMetricsRubric())

    def _spec(self, state: State) -> SandboxSpec | None:
        return self.taskset.get_sandbox_spec(state.get("info") or {}) or self.harness.sandbox_spec

    async def get_docker_image(self, state: State) -> str:
        spec = self._spec(state)
        return self.docker_image if spec is None else spec.image

    def get_sandbox_resources(self, state: State) -> dict[str, Any]:
        resources, spec = super().get_sandbox_resources(state), self._spec(state)
        if spec is None:
            return resources
        named = {name: getattr(spec, name) for name in resources if getattr(spec, name, None) is not None}
        return {**resources, **named, "vm": spec.gpu_count > 0}

    def writable_folders(self, state: State) -> list[str]:
        harness, workdir = self.harness, self.taskset.get_workdir(state.get("info") or {})
        files = [harness.instruction_path, harness.system_prompt_path, harness.log_path or ""]
        files += list(harness.post_install_uploads or {})
        folders = [*(harness.get_effective_upload_dir_mapping() or {}).values(), workdir]
        return [*super().writable_folders(state), *(path.rpartition("/")[0] for path in files), *folders]

    async def read_only_folders(self, state: State) -> dict[str, str]:
        """The agent of `whet agent list`, where the harness names one."""
        folders = await super().read_only_folders(state)
        if self.harness.agent is None:
            return folders
        preset = find_agent(self.harness.agent)
        return {**folders, INSIDE: str(await agent_folder(preset, preset.version, self.sandbox_client))}

    async def build_env_vars(self, state: State) -> dict[str, str]:
        of_agent = find_agent(self.harness.agent).env if self.harness.agent else {}
        variables = {**of_agent, **await super().build_env_vars(state)}
        of_harness = self.harness.environment_vars(state) if self.harness.environment_vars else {}
        for whose, more in (("Harness.environment_vars", of_harness), ("get_env_vars", self.taskset.get_env_vars())):
            taken = (self.PROTECTED_ENV_VARS | {"AGENT_WORKDIR"}) & more.keys()
            if taken:
                raise ConfigError(f"{whose} sets {', '.join(sorted(taken))}, which is the environment's to set.")
            variables.update(more)
        variables["AGENT_WORKDIR"] = self.taskset.get_workdir(state.get("info") or {})
        return variables

    async def add_trajectory_step(self, state: State, trajectory_step: TrajectoryStep) -> None:
        """Record the step, unless the harness's filter says that it is another agent's."""
        keep = self.harness.keep_trajectory_step
        if keep is None or keep(trajectory_step, state, state.get("_last_request_headers") or {}):
            await super().add_trajectory_step(state, trajectory_step)

    async def post_sandbox_setup(self, state: State) -> None:
        """Set up the task, upload what the agent reads, install the agent."""
        harness, sandbox_id, info = self.harness, state["sandbox_id"], state.get("info") or {}
        spec = self._spec(state)
        minutes = None if spec is None else spec.timeout_minutes
        state["sandbox_client"] = self.sandbox_client
        state["test_timeout"] = 60 * (minutes or self.compute_sandbox_timeout_minutes())
        await self.taskset.setup(state)
        instruction = self.taskset.get_instruction(info)
        if instruction.strip():
            await self.upload_content(sandbox_id, instruction, harness.instruction_path)
        if harness.system_prompt:
            await self.upload_content(sandbox_id, harness.system_prompt, harness.system_prompt_path)
        places = harness.get_effective_upload_dir_mapping() or {}
        for name, folder in self._upload_dirs().items():
            if name in places:
                await self._upload_dir(sandbox_id, folder, places[name])
        await self._run_script(sandbox_id, harness.install_script, "installing the agent")
        for path, content in (harness.post_install_uploads or {}).items():
            await self.upload_content(sandbox_id, content, path)
        await self._run_script(sandbox_id, harness.post_install_script, "after the agent's installation")

    def _upload_dirs(self) -> dict[str, Traversable | Path]:
        of_task = self.taskset.get_upload_dirs() or {}
        of_harness = (self.harness.get_upload_dirs() if self.harness.get_upload_dirs else None) or {}
        both = sorted(of_task.keys() & of_harness.keys())
        if both:
            raise ConfigError(f"taskset and harness both upload {', '.join(both)}.")
        return {**of_task, **of_harness}

    async def _upload_dir(self, sandbox_id: str, folder: Traversable | Path, path: str) -> None:
        sandbox = await self.sandbox_client.sandbox(sandbox_id)

        def copied(target: str) -> None:
            with importlib.resources.as_file(folder) as source:
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)

        with tempfile.TemporaryDirectory() as scratch:
            await asyncio.to_thread(copied, scratch)
            await sandbox.upload(scratch, path)

    async def _run_script(self, sandbox_id: str, script: str | None, what: str) -> None:
        if not script:
            return
        result = await self.sandbox_client.execute_command(
            sandbox_id, script, timeout=self.harness.install_timeout, env=self.install_env
        )
        if result.exit_code != 0:
            said = (result.stdout + result.stderr).strip()[-500:]
            raise SandboxError(f"{what} failed (exit={result.exit_code}; no network but hosts of network=): {said}")

    async def post_rollout(self, state: State) -> None:
        """Read the agent's log and metrics."""
        sandbox_id, harness = state.get("sandbox_id"), self.harness
        if sandbox_id and harness.log_path and "agent_logs" not in state:
            log = await self.read_file(sandbox_id, harness.log_path)
            state["agent_logs"] = "<no logs>" if log is None else log.strip()
        if sandbox_id and harness.metrics_path:
            await self._read_metrics(sandbox_id, state)
        await super().post_rollout(state)

    async def _read_metrics(self, sandbox_id: str, state: State) -> None:
        harness = self.harness
        workdir = shlex.quote(self.taskset.get_workdir(state.get("info") or {}))
        pattern = str(harness.metrics_path).format(workdir=workdir)
        try:
            listed = await self.sandbox_client.execute_command(sandbox_id, f"cat -- $(ls {pattern} | head -n 1)")
            data = json.loads(listed.stdout)
            data = data.get(harness.metrics_key, {}) if harness.metrics_key else data
            chosen = {f"{harness.metrics_prefix}{key}": value for key, value in data.items()
                      if harness.metrics_keys is None or key in harness.metrics_keys}  # fmt: skip
        except Exception as error:  # the agent wrote it
            self.logger.warning("the harness's metrics %s cannot be read: %s", harness.metrics_path, describe(error))
            return
        state.update({key: value for key, value in chosen.items() if key not in state})
        state["_harness_metrics"] = {key: float(v) for key, v in chosen.items() if isinstance(v, int | float)}
