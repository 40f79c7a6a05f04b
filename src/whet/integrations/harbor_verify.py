"""`whet env verify harbor:DIR`: the solution of each task has the reward 1; nothing, and its cheats, have less.

A cheat is a script `cheats/NAME.sh` of the task's folder, an attempt that should not be enough. Generated tasks have
some (`authoring/terminal`); Harbor's format knows none, and other programs ignore them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from whet.errors import ConfigError, Error, SandboxFileError
from whet.integrations.harbor_env import SOLVE, HarborEnv
from whet.integrations.harbor_task import HarborTask
from whet.rollouts.generate import run_sync


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """The rewards of a task's solution, of nothing and of its cheats; None, with a problem, where there was none."""

    task: str
    solution: float | None
    nothing: float | None
    cheats: dict[str, float] = field(default_factory=dict)
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem and self.solution == 1.0 and not self._rewarded()

    def _rewarded(self) -> dict[str, float | None]:
        """The attempts that should have less than 1, and have not."""
        attempts = {"doing nothing": self.nothing, **self.cheats}
        return {name: reward for name, reward in attempts.items() if reward is None or reward >= 1.0}

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}

    def describe(self) -> str:
        numbers = f"solution {self.solution}, doing nothing {self.nothing}"
        if self.cheats:
            numbers += f", cheats {max(self.cheats.values())} at most"
            numbers += "".join(f", {name} {self.cheats[name]}" for name in self._rewarded() if name in self.cheats)
        return f"{'ok    ' if self.ok else 'failed'} {self.task}: {self.problem or numbers}"


def verify_tasks(env: HarborEnv, on_checked: Callable[[TaskCheck], None] | None = None) -> list[TaskCheck]:
    """Attempt each task with its solution, with nothing and with its cheats. What is refused has failed.

    As many tasks as there are processors are attempted at once; `on_checked` is called with each as it ends.
    """
    report = on_checked or (lambda check: None)

    async def check(task: HarborTask) -> TaskCheck:
        solution = nothing = None
        cheats: dict[str, float] = {}
        try:
            solved = await env.attempt(task, SOLVE)
            solution = solved.rewards["reward"]
            nothing = (await env.attempt(task)).rewards["reward"]
            for file in sorted((task.folder / "cheats").glob("*.sh")):
                try:
                    cheats[file.stem] = (await env.attempt(task, f"cheats/{file.name}")).rewards["reward"]
                except SandboxFileError:  # what it left cannot be carried, for which a rollout is graded 0
                    cheats[file.stem] = 0.0
        except (ConfigError, Error) as error:
            return TaskCheck(task.name, solution, nothing, cheats, str(error))
        problem = f"its solution has the reward {solution:g}, not 1. The verifier wrote: {solved.wrote}"
        return TaskCheck(task.name, solution, nothing, cheats, problem if solution != 1 else "")

    async def check_all() -> list[TaskCheck]:
        turns = asyncio.Semaphore(os.cpu_count() or 1)

        async def in_turn(task: HarborTask) -> TaskCheck:
            async with turns:
                result = await check(task)
            report(result)
            return result

        try:
            refused = [TaskCheck(name, None, None, problem=why) for name, why in env.refused.items()]
            for one in refused:
                report(one)
            return [*refused, *await asyncio.gather(*map(in_turn, env.tasks))]
        finally:
            await env.close()

    return run_sync(check_all())
