"""`harbor:DIR` with `agent`: tasks of Harbor's format, attempted by a coding agent that others wrote.

    env = whet.load_environment("harbor:./tasks", agent="codex", max_turns=40)

Boxes, grading and rewards are those of `HarborEnv`; the agent is that of `Harness(program={"agent": ...})`, in WORKDIR,
for at most `[agent] timeout_sec`. Its box stays until the rollout is over, so that what it did counts however it ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from whet.decorators import cleanup, teardown
from whet.envs.sandboxed import programs as host_programs
from whet.errors import ConfigError
from whet.integrations.external_scores import ExternalScoreRubric
from whet.integrations.harbor_env import HarborEnv, harbor_reward
from whet.integrations.harbor_task import HarborTask
from whet.sandboxes.protocol import Sandbox
from whet.tasksets.agents.program import AgentConfig, AgentProgram
from whet.tasksets.env import Env
from whet.tasksets.harness import Harness
from whet.tasksets.programs.command import Invocation
from whet.tasksets.programs.session import Opening
from whet.tasksets.state import TaskState
from whet.tasksets.task import Task
from whet.tasksets.taskset import Taskset
from whet.types import State


class HarborAgentProgram(AgentProgram):
    """An agent in the box of a Harbor task, which is left open."""

    def __init__(self, config: AgentConfig, harbor: HarborEnv) -> None:
        super().__init__(config, None, "harbor:")
        self._harbor = harbor
        self.boxes: dict[str, str] = {}  # ids of sandboxes, by trajectory id

    @asynccontextmanager
    async def _sandbox(self, opening: Opening, task: Task, state: TaskState) -> AsyncIterator[Sandbox]:
        client, request = self._harbor.sandbox_client, await self._harbor.agent_request(self._of(task))
        request.origin = f"127.0.0.1:{opening.port}"
        request.network_idle_s = request.timeout_minutes * 60
        request.read_only = {**request.read_only, **await self._shown()}
        handle = await client.create(request)
        self.boxes[state["trajectory_id"]] = handle.id
        box = await client.sandbox(handle.id)
        await self._harbor.unpack(box)
        if self._harbor.has_own_system:
            await self._check_program(box, self._of(task))
        yield box

    async def _check_program(self, box: Sandbox, task: HarborTask) -> None:
        program = self.preset.command[0]
        if "/" in program or program in self.preset.programs:  # which whet shows
            return
        if (await box.exec(["sh", "-c", 'command -v "$1"', "sh", program])).ok:
            return
        raise ConfigError(
            f"agent '{self.preset.name}' is run by {program}, which the image of task {task.name} lacks. "
            "Install it in the Dockerfile, or take another agent."
        )

    def _programs(self) -> dict[str, str]:
        return host_programs.to_be_shown(self.preset.programs, own_system=self._harbor.has_own_system)

    async def _invocation(
        self, task: Task, state: TaskState, sandbox: Sandbox, opening: Opening, home: str
    ) -> Invocation:
        started, attempted = await super()._invocation(task, state, sandbox, opening, home), self._of(task)
        workdir, limit = attempted.dockerfile.workdir, attempted.table.agent.timeout_sec
        # Shells then call the folder by this name, which is a link.
        return replace(started, cwd=workdir, variables={**started.variables, "PWD": workdir}, timeout_s=limit)

    def _of(self, task: Mapping[str, Any]) -> HarborTask:
        return self._harbor.tasks[int(task["info"]["number"])]


class HarborWithAgentEnv(Env):
    """Tasks of Harbor's format, attempted by a coding agent."""

    def __init__(
        self,
        target: str,
        agent: Any,
        max_turns: int = 50,
        max_carried_mb: float = 64,
        leave_out_refused: bool = False,
        num_eval_examples: int = 0,
        packages: str = "",
        network: Sequence[str] = (),
        build_network: Sequence[str] = (),
        verifier_network: Sequence[str] = (),
        one_user: bool = False,
        images: Mapping[str, str] | None = None,
        backend: str = "bubblewrap",
        system_prompt: str | None = None,
        few_shot: Sequence[Any] = (),
        **kwargs: Any,
    ) -> None:
        """Make an environment.

        Args:
            target: a folder with a task or with tasks, or FOLDER#NAME.
            agent: a name of `whet agent list`, or a table with `agent` and `version`, `args`, `env`, `context_tokens`,
                `output_tokens`, `helper_models`, `helper_prompts`.
            max_turns: turns of the model after which a rollout ends, and is graded.
            few_shot: messages before the instruction, for the agent `bash`; the others are given one text.
            kwargs: arguments of `Env`, such as `timeout_seconds`; the others are those of `HarborEnv`.
        """
        self._harbor = HarborEnv(
            target,
            max_carried_mb=max_carried_mb,
            leave_out_refused=leave_out_refused,
            num_eval_examples=num_eval_examples,
            packages=packages,
            network=network,
            build_network=build_network,
            verifier_network=verifier_network,
            one_user=one_user,
            images=images,
            backend=backend,
        )
        config = AgentConfig.from_config(agent if isinstance(agent, Mapping) else {"agent": agent})
        self._attempting = HarborAgentProgram(config, self._harbor)
        split = self._harbor.split
        rows: list[dict[str, Any]] = [
            {**row, "prompt": [*few_shot, {"role": "user", "content": row["question"]}]} for row in self._harbor.rows
        ]
        harness = Harness(program=self._attempting.run, max_turns=max_turns, system_prompt=system_prompt)
        harness.command = self._attempting
        super().__init__(Taskset(source=rows[:split], eval_source=rows[split:] or None), harness, **kwargs)
        self.add_rubric(ExternalScoreRubric(harbor_reward))

    @cleanup(priority=-1)  # when the agent has ended
    async def grade_rollout(self, state: State) -> None:
        box_id = self._attempting.boxes.pop(state["trajectory_id"], None)
        if box_id is None:
            return
        client, carried = self._harbor.sandbox_client, None
        try:
            if state.get("error") is None and self.score_rollouts:
                task = self._harbor.tasks[int(state["info"]["number"])]
                carried = await self._harbor.carry(await client.sandbox(box_id), task)
        finally:
            await client.delete(box_id)
        if carried is not None:
            await self._harbor.reward(state, carried)

    @teardown
    async def close_boxes(self) -> None:
        await self._harbor.close()
