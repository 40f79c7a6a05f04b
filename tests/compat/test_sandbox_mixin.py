"""An environment that makes its sandboxes by `SandboxMixin` runs in whet's sandboxes."""

import sys

import pytest

import whet

SOURCE = """
import verifiers as vf
from prime_sandboxes import CreateSandboxRequest
from prime_sandboxes.exceptions import CommandTimeoutError
from verifiers.envs.experimental.sandbox_mixin import SandboxMixin, SandboxMonitorRubric
from verifiers.envs.sandbox_env import AdvancedConfigs


class Runs(SandboxMixin, vf.SingleTurnEnv):
    def __init__(self, advanced_configs: AdvancedConfigs | None = None, **kwargs):
        super().__init__(**kwargs)
        self.init_sandbox_client(sandbox_client_max_workers=5, sandbox_creations_per_minute=10)
        self.add_rubric(SandboxMonitorRubric())

    async def setup_state(self, state):
        request = CreateSandboxRequest(
            name="runs", docker_image="python:3.11-slim", timeout_minutes=self.compute_sandbox_timeout_minutes()
        )
        await self.create_sandbox(state, request)

    async def post_sandbox_setup(self, state):
        await self.upload_bundle(state["sandbox_id"], {"a.txt": "one", "b/c.txt": "two"}, "/tmp/files")
        await self.upload_content(state["sandbox_id"], "three", "/tmp/three.txt")

    @vf.cleanup
    async def look(self, state):
        sandbox_id = state["sandbox_id"]
        state["read"] = [await self.read_file(sandbox_id, "/tmp/three.txt"), await self.read_file(sandbox_id, "/none")]
        job = await self.run_background_job(state, "cat /tmp/files/a.txt /tmp/files/b/c.txt", timeout=20)
        state["job"] = [job.completed, job.exit_code, job.stdout]
        try:
            await self.run_background_job(state, "sleep 60", timeout=1)
        except CommandTimeoutError:
            state["late"] = True
        await self.delete_sandbox(sandbox_id)
        state["active"] = sorted(self.active_sandboxes)


def load_environment():
    return Runs(dataset=[{"question": "?"}], rubric=vf.Rubric(), timeout_seconds=90, advanced_configs=None)
"""


@pytest.fixture
def env(tmp_path, bubblewrap, monkeypatch):
    monkeypatch.delitem(sys.modules, "runs_with_mixin", raising=False)
    path = tmp_path / "runs_with_mixin.py"
    path.write_text(SOURCE)
    return whet.load_environment(str(path))


def test_mixin_environment_manages_its_sandbox(env):
    columns = ["read", "job", "late", "active"]
    (row,) = env.evaluate_sync(whet.ScriptedClient(["."]), "m", state_columns=columns)["outputs"]
    assert row["error"] is None
    assert row["read"] == ["three", None]
    assert row["job"] == [True, 0, "onetwo"]
    assert (row["late"], row["active"]) == (True, [])
    assert (row["metrics"]["sandbox_oom"], row["metrics"]["sandbox_timeout"]) == (0.0, 0.0)


def test_its_sandboxes_live_an_hour_longer_than_a_rollout(env):
    assert env.compute_sandbox_timeout_minutes() == 62
    env.timeout_seconds = None
    assert env.compute_sandbox_timeout_minutes() == 24 * 60
    env.sandbox_timeout_minutes = 5
    assert env.compute_sandbox_timeout_minutes() == 5
