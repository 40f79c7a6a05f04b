"""`HarborEnv` of `verifiers.envs.experimental`: tasks of Harbor's format for an agent's program.

As in 0.1.14, `tests/test.sh` runs in the agent's own sandbox once the agent has ended. `harbor:DIR` is whet's own
environment for such tasks: it carries out their Dockerfiles, and grades in a sandbox of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whet.compat.experimental.cli_agent_env import CliAgentEnv
from whet.decorators import cleanup
from whet.errors import ConfigError, EnvError
from whet.parsing import as_number, parse_json, parse_toml
from whet.rubrics.rubric import Rubric
from whet.types import State

TESTS_S, REWARD_BYTES = 300, 64 * 1024
_REWARD = "for f in reward.txt reward.json; do if [ -s /logs/verifier/$f ]; then exec cat /logs/verifier/$f; fi; done"


class HarborAgentEnv(CliAgentEnv):
    """An agent attempts Harbor's tasks; the reward is what their tests write."""

    def __init__(
        self,
        run_command: str,
        dataset_path: str | Path,
        tasks: list[str] | None = None,
        agent_workdir: str = "/app",
        docker_image: str = "python:3.11-slim",
        mcp_launch_commands: dict[str, str] | None = None,
        mcp_healthcheck: Any = None,
        **kwargs: Any,
    ) -> None:
        """Make an environment of the tasks below `dataset_path`, or of those named.

        Args:
            run_command: the shell command that runs the agent; it reads /task/instruction.md.
            agent_workdir: its working folder, in AGENT_WORKDIR.
            kwargs: arguments of `CliAgentEnv`. Servers of MCP that a task declares are refused.
        """
        self.dataset_path, self.task_names, self.agent_workdir = Path(dataset_path), tasks, agent_workdir
        dataset = self.load_harbor_dataset()
        super().__init__(
            run_command, docker_image=docker_image, dataset=dataset, rubric=Rubric([self.harbor_reward]), **kwargs
        )

    def load_harbor_dataset(self) -> list[dict[str, Any]]:
        """A row for each task. Raises ConfigError where there is none, or one needs what there is not."""
        rows: list[dict[str, Any]] = []
        for config_file in sorted(self.dataset_path.glob("*/task.toml")):
            folder = config_file.parent
            if (self.task_names and folder.name not in self.task_names) or not (folder / "instruction.md").is_file():
                continue
            try:
                config = parse_toml(config_file.read_text("utf-8"))
            except ValueError as error:
                raise ConfigError(f"{config_file} cannot be read: {error}.") from error
            box = config.get("environment", {})
            if box.get("mcp_servers"):
                raise ConfigError(f"{config_file} declares servers of MCP, which HarborEnv does not start here.")
            info = {"task_name": folder.name, "task_dir": str(folder), "config": config}
            prompt = [{"role": "user", "content": (folder / "instruction.md").read_text("utf-8").strip()}]
            rows.append({"prompt": prompt, "info": {**info, "docker_image": box.get("docker_image")}})
        if not rows:
            raise ConfigError(f"{self.dataset_path} has no such folders with task.toml and instruction.md.")
        return rows

    async def get_docker_image(self, state: State) -> str:
        return state["info"].get("docker_image") or self.docker_image

    def writable_folders(self, state: State) -> list[str]:
        return [*super().writable_folders(state), *([self.agent_workdir] if self.agent_workdir else [])]

    async def build_env_vars(self, state: State) -> dict[str, str]:
        variables = {
            "HARBOR_TASK_NAME": state["info"]["task_name"],
            "HARBOR_TASK_DIR": "/task",
            "HARBOR_INSTRUCTION_PATH": "/task/instruction.md",
            **({"AGENT_WORKDIR": self.agent_workdir} if self.agent_workdir else {}),
        }
        return {**variables, **await super().build_env_vars(state)}

    async def post_sandbox_setup(self, state: State) -> None:
        """Upload the instruction; tests and solution come when the agent has ended."""
        sandbox_id, folder = state["sandbox_id"], Path(state["info"]["task_dir"])
        state["harbor_task_dir"] = str(folder)
        await self.prepare_harbor_task(sandbox_id, folder)
        await self.pre_mcp_setup(state)

    async def pre_mcp_setup(self, state: State) -> None:
        """Override to prepare the sandbox further."""

    async def prepare_harbor_task(self, sandbox_id: str, task_dir: Path) -> None:
        folders = f"mkdir -p /task /logs/verifier {self.agent_workdir}"
        await self.sandbox_client.execute_command(sandbox_id, folders)
        for name in ("instruction.md", "task.toml"):
            await self.upload_file(sandbox_id, f"/task/{name}", str(task_dir / name))

    async def upload_test_assets(self, sandbox_id: str, task_dir: Path) -> None:
        sandbox = await self.sandbox_client.sandbox(sandbox_id)
        await self.sandbox_client.execute_command(sandbox_id, "find /oracle /tests /logs/verifier -mindepth 1 -delete")
        for name, path in (("solution", "/oracle"), ("tests", "/tests")):
            if (task_dir / name).is_dir():
                await sandbox.upload(task_dir / name, path)

    async def post_rollout(self, state: State) -> None:
        """Run the tests, unless the rollout has failed."""
        await super().post_rollout(state)
        if state.get("error") is None and state.get("sandbox_id"):
            state["reward"] = await self.compute_reward(state)

    @cleanup(priority=-1)
    async def keep_reward(self, state: State) -> None:
        """Keep what `post_rollout` found where scoring, which begins with a reward of 0, does not replace it."""
        state["harbor_reward"] = state.get("reward")

    async def harbor_reward(self, state: State) -> float:
        return float(state["harbor_reward"] or 0.0)

    async def compute_reward(self, state: State) -> float:
        """What `tests/test.sh` wrote to /logs/verifier. Raises EnvError where that is no number."""
        sandbox_id, folder = state["sandbox_id"], Path(state["harbor_task_dir"])
        await self.upload_test_assets(sandbox_id, folder)
        tests = await self.run_background_job(state, "bash test.sh", timeout=TESTS_S, working_dir="/tests")
        written = (await self.sandbox_client.execute_command(sandbox_id, _REWARD)).stdout.strip()
        try:
            value = parse_json(written, REWARD_BYTES) if written.startswith("{") else float(written)
        except ValueError:
            value = None
        number = as_number(value.get("reward") if isinstance(value, dict) else value)
        if number is None:
            said = (tests.stderr or tests.stdout or "").strip()[-500:]
            raise EnvError(f"task {folder.name}: tests/test.sh wrote the reward {written!r:.80}, no number: {said}")
        return number
