"""A shell in a sandbox: what the model sees, what the rollout is charged with, and what is left behind (nothing).

The sandboxes are real ones. What environments written for 0.1 call is tested as they call it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.errors import ConfigError, SandboxUnavailableError
from whet.sandboxes.bubblewrap.backend import BubblewrapBackend
from whet.sandboxes.pool import shared_pool

pytestmark = pytest.mark.usefixtures("bubblewrap")
TASK = [{"question": "q", "answer": "a"}]


def bash(command: str, **more: Any) -> dict[str, Any]:
    arguments = json.dumps({"command": command, **more})
    return {"tool_calls": [{"id": "1", "name": "bash", "arguments": arguments}]}


def rollouts(env: whet.Environment, script: Any, count: int = 1, **kwargs: Any) -> list[whet.State]:
    async def run() -> list[whet.State]:
        client, row = whet.ScriptedClient(script), env.get_dataset()[0]
        return list(await asyncio.gather(*(env.rollout(row, client, "m", {}) for _ in range(count))))

    return asyncio.run(run())


def answers(state: whet.State) -> list[str]:
    return [message.content for message in state["completion"] if message.role == "tool"]


def said(*commands: str, **kwargs: Any) -> list[str]:
    """What the model reads after each of these commands."""
    env = whet.SandboxEnv(dataset=TASK, **kwargs)
    (state,) = rollouts(env, [*map(bash, commands), "done"])
    assert state["error"] is None
    return answers(state)


class Spy(whet.SandboxEnv):
    """Remembers how many sandboxes there were at most, and how many are left."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(dataset=TASK, **kwargs)
        self.most = 0
        self.left = -1

    async def post_rollout(self, state: whet.State) -> None:
        self.most = max(self.most, shared_pool().leased)

    @whet.cleanup(priority=-1)
    async def count(self, state: whet.State) -> None:
        self.left = shared_pool().leased


def test_the_model_is_shown_the_command_and_nothing_else() -> None:
    (tool,) = whet.SandboxEnv(dataset=TASK).tool_defs or []
    assert tool["name"] == "bash"
    assert list(tool["parameters"]["properties"]) == ["command"]


def test_files_stay_from_one_command_to_the_next() -> None:
    assert said("echo kept > file", "cat file") == ["(no output)", "kept"]


def test_commands_are_run_by_bash() -> None:
    assert said("[[ abc == a* ]] && echo {1..3}") == ["1 2 3"]


def test_what_is_written_to_stderr_is_told_apart() -> None:
    assert said("echo out; echo err >&2; exit 3", "echo err >&2") == ["out\nstderr:\nerr", "stderr:\nerr"]


def test_a_command_that_takes_too_long_is_told_with_what_it_wrote() -> None:
    assert said("echo begun; sleep 60", timeout_per_command_seconds=1) == ["begun\nError: Command timed out after 1s"]


def test_a_command_that_writes_too_much_is_ended() -> None:
    (text,) = said("yes", max_output_bytes=1000)
    assert text.endswith("Error: Command was stopped: it wrote more than 1000 bytes of output")
    assert len(text) < 1200


def test_a_command_that_runs_out_of_memory_is_told_so() -> None:
    (text,) = said("python3 -c 'x = bytearray(90 << 20)'", memory_gb=64 / 1024)
    assert text == "Error: Command ran out of memory" or "MemoryError" in text


def test_a_command_that_was_killed_is_told_so() -> None:
    assert said("kill -SEGV $$") == ["Error: Command was killed by SIGSEGV"]


def test_half_a_character_in_a_command_is_replaced() -> None:
    assert said("echo 'a\ud800b' '\ud83d\ude00'") == ["a\N{REPLACEMENT CHARACTER}b \N{GRINNING FACE}"]


def test_bytes_that_are_no_text_do_not_break_the_answer() -> None:
    assert said(r"printf '\xff\xfe'") == ["\N{REPLACEMENT CHARACTER}" * 2]


def test_the_middle_of_a_long_answer_can_be_left_out() -> None:
    (text,) = said("seq 1 10000", max_output_chars=20)
    assert text == "1\n2\n3\n4\n5\n\n[... 48873 characters left out ...]\n9999\n10000"


def test_the_model_cannot_choose_another_sandbox() -> None:
    env = whet.SandboxEnv(dataset=TASK)
    forged = bash("echo mine", sandbox_id="sandbox-of-another-rollout", working_dir="/etc", sandbox_state={})
    (state,) = rollouts(env, [forged, "done"])
    assert answers(state) == ["mine"]


def test_each_rollout_has_a_sandbox_of_its_own() -> None:
    env = whet.SandboxEnv(dataset=TASK)
    states = rollouts(env, [bash("ls | wc -l; touch file-$RANDOM"), "done"], count=3)
    assert [answers(state) for state in states] == [["0"]] * 3
    assert len({state["sandbox_id"] for state in states}) == 3


def test_the_sandbox_is_made_while_the_model_takes_its_first_turn() -> None:
    env = whet.SandboxEnv(dataset=TASK)

    async def model(state: whet.State) -> Any:
        if state["trajectory"]:
            return "done"
        await env.sandbox_client.sandbox(state["sandbox_id"])  # for ever, were it made by the first command
        return bash("echo here")

    (state,) = rollouts(env, model)
    assert answers(state) == ["here"]


def test_environment_and_working_folder_are_the_environments_to_choose() -> None:
    class Elsewhere(whet.SandboxEnv):
        async def setup_state(self, state: whet.State, **kwargs: Any) -> Any:
            state["working_dir"] = "/tmp"
            return await super().setup_state(state, **kwargs)

    env = Elsewhere(dataset=TASK, environment_vars={"GREETING": "hello"})
    (state,) = rollouts(env, [bash("echo $GREETING; pwd -L"), "done"])
    assert answers(state) == ["hello\n/home/tmp"]


def test_times_are_metrics() -> None:
    env = whet.SandboxEnv(dataset=TASK)
    (output,) = env.evaluate_sync(whet.ScriptedClient([bash("sleep 0.05"), "done"]), "m")["outputs"]
    assert output["metrics"]["sandbox_command_execution_time"] >= 0.05
    assert output["metrics"]["sandbox_ready_wait_time"] > 0
    assert output["metrics"]["bash_calls"] == 1.0


def test_one_environment_serves_one_event_loop_after_the_other() -> None:
    env = whet.SandboxEnv(dataset=TASK, max_sandboxes=1)
    for _ in range(2):
        (state,) = rollouts(env, [bash("echo here"), "done"])
        assert answers(state) == ["here"]


# What is left behind


def raise_an_error(prompt: Any) -> Any:
    raise whet.ModelError("no model")


@pytest.mark.parametrize("script", [["done"], [bash("sleep 100 & echo"), "done"], raise_an_error])
def test_nothing_is_left_after_a_rollout_however_it_ends(script: Any) -> None:
    env = Spy()
    rollouts(env, script)
    assert (env.left, env.active_sandboxes) == (0, set())


def test_nothing_is_left_after_a_time_out() -> None:
    env = Spy(timeout_seconds=0.5)
    (state,) = rollouts(env, [bash("sleep 100"), "done"])
    assert state["stop_condition"] == "timeout_reached"
    assert (env.left, env.active_sandboxes) == (0, set())


@pytest.mark.parametrize("when", ["at once", "in a command"])
def test_nothing_is_left_after_a_cancellation(when: str) -> None:
    env = Spy()

    async def run() -> None:
        began = asyncio.Event()

        async def model(state: whet.State) -> Any:
            began.set()
            return bash("touch here; sleep 100")

        task = asyncio.ensure_future(env.rollout(env.get_dataset()[0], whet.ScriptedClient(model), "m", {}))
        await began.wait()
        if when == "in a command":
            sandbox = await env.sandbox_client.sandbox(next(iter(env.active_sandboxes)))
            while not (await sandbox.exec(["test", "-e", "here"])).ok:
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert (env.left, env.active_sandboxes) == (0, set())


def test_closing_the_environment_ends_what_is_left() -> None:
    env = whet.SandboxEnv(dataset=TASK)

    async def run() -> tuple[bool, int]:
        handle = await env.sandbox_client.create(env.sandbox_request)
        sandbox = await env.sandbox_client.sandbox(handle.id)
        await env.close()
        return sandbox.closed, shared_pool().leased

    assert asyncio.run(run()) == (True, 0)


def test_never_more_sandboxes_than_max_sandboxes() -> None:
    env = Spy(max_sandboxes=2)
    states = rollouts(env, [bash("echo here"), "done"], count=6)
    assert [answers(state) for state in states] == [["here"]] * 6
    assert env.most <= 2


# Whose fault it is


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the host fail to create the next so many sandboxes."""

    def fail(times: int) -> None:
        create = BubblewrapBackend.create
        left = [times]

        async def failing(self: BubblewrapBackend, spec: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise whet.SandboxError("the host has no memory left")
            return await create(self, spec)

        monkeypatch.setattr(BubblewrapBackend, "create", failing)

    return fail


def test_creation_is_tried_again_before_it_counts_as_failed(flaky: Callable[[int], None]) -> None:
    flaky(2)
    assert said("echo here", max_retries=3, base_delay=0.001) == ["here"]


def test_a_host_that_cannot_make_a_sandbox_makes_the_rollout_errored(flaky: Callable[[int], None]) -> None:
    flaky(9)
    env = Spy(max_retries=2, base_delay=0.001)
    (state,) = rollouts(env, [bash("echo here")])
    assert isinstance(state["error"], whet.SandboxError)
    assert "no memory left" in str(state["error"])
    assert (env.left, env.active_sandboxes) == (0, set())


def test_such_a_rollout_is_attempted_again(flaky: Callable[[int], None]) -> None:
    flaky(2)
    env = whet.SandboxEnv(dataset=TASK, max_retries=2, base_delay=0.001)
    client = whet.ScriptedClient([bash("echo here"), "done"])

    async def run() -> Any:
        from whet.rollouts.groups import run_group

        return await run_group(env, [env.get_dataset()[0]], client, "m", {}, max_retries=1, retry_delay=0.001)

    (state,) = asyncio.run(run())
    assert (state["error"], answers(state)) == (None, ["here"])


def test_a_sandbox_that_dies_under_a_command_is_the_hosts_failure() -> None:
    class Dying(whet.SandboxEnv):
        async def bash(self, command: str, sandbox_id: str, sandbox_state: Any, working_dir: Any = None) -> str:
            """Run a command."""
            await (await self.sandbox_client.sandbox(sandbox_id)).close()
            return await super().bash(command, sandbox_id, sandbox_state, working_dir)

    env = Dying(dataset=TASK, stop_errors=[whet.SandboxError])  # as 0.1 has it by default
    (state,) = rollouts(env, [bash("echo here")])
    assert isinstance(state["error"], whet.SandboxError)
    assert "closed" in str(state["error"])


def test_a_backend_that_cannot_run_here_ends_the_run_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(self: BubblewrapBackend) -> None:
        raise SandboxUnavailableError("the bubblewrap sandbox needs the program bwrap. Install it with: apt")

    monkeypatch.setattr(BubblewrapBackend, "check", check)
    with pytest.raises(SandboxUnavailableError, match="Install it with"):
        whet.SandboxEnv(dataset=TASK).evaluate_sync(whet.ScriptedClient(["done"]), "m")


# Arguments


def test_what_bubblewrap_cannot_heed_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        env = whet.SandboxEnv(dataset=TASK, docker_image="img", team_id="team", sandbox_client_max_workers=5)
        rollouts(env, ["done"], count=2)
    (record,) = [record for record in caplog.records if record.name.startswith("whet")]
    assert "docker_image='img'" in record.message
    assert "backend='docker' runs images" in record.message
    assert "team_id" in record.message


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ({"gpu_count": 1}, "gpu_count=1 asks for a GPU"),
        ({"memory_gb": -1}, "memory_gb=-1 is not possible"),
        ({"cpu_cores": "many"}, "cpu_cores='many' is not possible"),
        ({"timeout_per_command_seconds": 0}, "timeout_s=0 should be greater than 0"),
        ({"backend": "bubblewarp"}, "there is no sandbox backend 'bubblewarp'"),
        ({"max_sandboxes": 0}, "max_sandboxes=0 should be at least 1"),
        ({"read_only": {"data": "/usr"}}, "should be an absolute path"),
        ({"memory": 3}, "has no argument 'memory'. Did you mean 'memory_gb'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_once(argument: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        whet.SandboxEnv(dataset=TASK, **argument)
    assert complaint in str(caught.value)


def test_a_start_command_runs_in_the_background() -> None:
    wait = "while [ ! -e ready ]; do :; done; cat ready"
    assert said(wait, start_command="echo started > ready; sleep 100") == ["started"]


def test_a_start_command_that_only_keeps_a_container_alive_is_not_run() -> None:
    count = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'tail -[f] /dev'"
    assert said(f"tail -f /dev/null & {count}", start_command="tail -f /dev/null") == ["1"]


def test_a_start_command_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Waiting(whet.SandboxEnv):
        async def post_rollout(self, state: whet.State) -> None:
            while "exit code 4: no such port" not in caplog.text:
                await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING):
        rollouts(Waiting(dataset=TASK, start_command="echo no such port >&2; exit 4"), ["done"])
    assert "exit code 4: no such port" in caplog.text


def test_hosts_that_are_not_named_cannot_be_reached() -> None:
    ask = "python3 -c 'import urllib.request as r; r.urlopen(\"http://other.invalid/\")' 2>&1 | tail -n 1"
    without, named = said(ask), said(ask, network=["example.org"])
    assert "URLError" in without[0]
    assert "HTTP Error 403" in named[0]


def test_a_folder_of_the_host_is_shown() -> None:
    assert said("ls /opt/share | head -1 | wc -l", read_only={"/opt/share": "/usr/share"}) == ["1"]


class Graded(whet.SandboxEnv):
    async def post_rollout(self, state: whet.State) -> None:
        await self.sandbox_client.upload_bytes(state["sandbox_id"], "/tests/test.sh", b"exit 0")
        result = await self.sandbox_client.execute_command(state["sandbox_id"], "sh /tests/test.sh")
        state["passed"] = result.exit_code == 0


def test_tests_that_cannot_be_uploaded_make_the_rollout_errored() -> None:
    (state,) = rollouts(Graded(dataset=TASK), ["done"])
    assert isinstance(state["error"], whet.SandboxError)
    assert "writable=['/tests']" in str(state["error"])


def test_tests_are_uploaded_to_a_declared_folder() -> None:
    (state,) = rollouts(Graded(dataset=TASK, writable=["/tests"]), ["done"])
    assert (state["error"], state["passed"]) == (None, True)


def test_a_program_from_elsewhere_is_shown_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp(prefix="whet-programs-"))  # pytest's own folders are closed to strangers
    try:
        folder.chmod(0o755)
        (folder / "secret").write_text("not for the model")
        (folder / "greet").write_text("#!/bin/sh\necho hello from greet\n")
        (folder / "greet").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        texts = said("greet; ls $(dirname $(command -v greet))", f"ls {folder}", programs=["greet", "sh"])
        assert texts[0] == "hello from greet\ngreet"
        assert "No such file" in texts[1]
    finally:
        shutil.rmtree(folder)


def test_a_missing_program_ends_the_run_with_how_to_install_it() -> None:
    env = whet.SandboxEnv(dataset=TASK, programs=["sh", "no-such-compiler"])
    with pytest.raises(
        SandboxUnavailableError, match=r"program no-such-compiler\. Install it with: .*no-such-compiler"
    ):
        rollouts(env, [bash("true")])


# As environments written for 0.1 use it


class Grep(whet.SandboxEnv):
    """Its own tool instead of the shell, files put there beforehand, a verdict before the sandbox is gone."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(dataset=TASK, labels=["grep"], **kwargs)
        self.remove_tool(self.bash)
        self.add_tool(self.grep, args_to_skip=["sandbox_id"])

    def get_sandbox_request(self, state: whet.State) -> Any:
        request = self.sandbox_request.model_copy(update={"name": "grep"})
        request.environment_vars = {"WHO": "per rollout"}
        return request

    async def setup_state(self, state: whet.State, **kwargs: Any) -> Any:
        state = await super().setup_state(state, **kwargs)
        await self.sandbox_client.wait_for_creation(state["sandbox_id"])
        await self.sandbox_client.upload_bytes(
            state["sandbox_id"], "/tmp/data/names", b"ada\ngrace\n", filename="names"
        )
        return state

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: whet.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "sandbox_id": state["sandbox_id"]} if tool_name == "grep" else tool_args

    async def grep(self, pattern: str, sandbox_id: str) -> str:
        """Search the names.

        Args:
            pattern: what to look for
        """
        result = await self.sandbox_client.execute_command(
            sandbox_id, f"grep {pattern} names; echo $WHO", working_dir="/tmp/data", timeout=10
        )
        return f"{result.stdout}{result.exit_code}"

    async def post_rollout(self, state: whet.State) -> None:
        await super().post_rollout(state)
        result = await self.with_retry(self.sandbox_client.read_file)(state["sandbox_id"], "/tmp/data/names")
        state["names"] = result.content


def test_an_environment_with_tools_and_files_of_its_own() -> None:
    call = {"tool_calls": [{"id": "1", "name": "grep", "arguments": '{"pattern": "gra"}'}]}
    (state,) = rollouts(Grep(), [call, "done"])
    assert answers(state) == ["grace\nper rollout\n0"]
    assert state["names"] == "ada\ngrace\n"


PACKAGE = """
from prime_sandboxes import CommandTimeoutError, CreateSandboxRequest

import verifiers as vf
from verifiers.envs.sandbox_env import SandboxEnv


class Slow(SandboxEnv):
    def get_sandbox_request(self, state: vf.State) -> CreateSandboxRequest:
        return CreateSandboxRequest(
            name="slow", docker_image="python:3.11-slim", start_command="tail -f /dev/null", cpu_cores=1, memory_gb=1,
            disk_size_gb=1, gpu_count=0, timeout_minutes=5, environment_vars=None, team_id=None, advanced_configs=None,
            labels=[],
        )

    async def post_rollout(self, state: vf.State):
        try:
            await self.sandbox_client.execute_command(state["sandbox_id"], "sleep 60", timeout=0.1)
        except CommandTimeoutError as e:
            state["seen"] = type(e).__name__


def load_environment(**kwargs) -> vf.Environment:
    def seen(state) -> float:
        return float(state["seen"] == "CommandTimeoutError")

    return Slow(dataset=[{"question": "q", "answer": "a"}], rubric=vf.Rubric(funcs=[seen]), **kwargs)
"""


def test_a_package_written_for_the_hosted_sandboxes_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(PACKAGE)
    program = (
        "import whet\n"
        "env = whet.load_environment('./slow.py', team_id='team')\n"
        "print(env.evaluate_sync(whet.ScriptedClient(['done']), 'm')['outputs'][0]['reward'])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("1.0\n", 0), done.stderr


def test_files_go_up_and_come_down(tmp_path: Any) -> None:
    (tmp_path / "up").write_text("data")

    class Files(whet.SandboxEnv):
        async def post_sandbox_setup(self, state: whet.State) -> None:
            await self.sandbox_client.upload_file(state["sandbox_id"], "there", tmp_path / "up")

        async def post_rollout(self, state: whet.State) -> None:
            await self.sandbox_client.download_file(state["sandbox_id"], "there", tmp_path / "down")

    rollouts(Files(dataset=TASK), [bash("echo more >> there"), "done"])
    assert (tmp_path / "down").read_text() == "datamore\n"


def test_commands_wait_until_the_sandbox_is_prepared_and_may_be_part_of_that() -> None:
    class Prepared(whet.SandboxEnv):
        async def post_sandbox_setup(self, state: whet.State) -> None:
            await self.bash("sleep 0.1; echo prepared > file", state["sandbox_id"], state["sandbox_state"])

    (state,) = rollouts(Prepared(dataset=TASK), [bash("cat file"), "done"])
    assert answers(state) == ["prepared"]


def test_a_preparation_that_fails_makes_the_rollout_errored() -> None:
    class Unprepared(whet.SandboxEnv):
        async def post_sandbox_setup(self, state: whet.State) -> None:
            raise ValueError("no such file here")

    (state,) = rollouts(Unprepared(dataset=TASK), [bash("true")])
    assert isinstance(state["error"], whet.SandboxError)
    assert "setting up a sandbox raised ValueError: no such file here" in str(state["error"])


def test_the_sandbox_is_ended_also_when_looking_at_it_fails() -> None:
    class Broken(Spy):
        async def post_rollout(self, state: whet.State) -> None:
            raise ValueError("no verdict")

    env = Broken()
    (state,) = rollouts(env, ["done"])
    assert isinstance(state["error"], whet.EnvError)
    assert (env.left, env.active_sandboxes) == (0, set())


def test_jobs_in_the_background() -> None:
    env = whet.SandboxEnv(dataset=TASK)

    async def run() -> Any:
        handle = await env.sandbox_client.create(env.sandbox_request)
        try:
            job = await env.sandbox_client.start_background_job(handle.id, "while [ ! -e go ]; do :; done; echo gone")
            early = await env.sandbox_client.get_background_job(handle.id, job)
            done = await env.sandbox_client.run_background_job(handle.id, "touch go; echo went", timeout=10)
            status = early
            while not status.completed:
                await asyncio.sleep(0)
                status = await env.sandbox_client.get_background_job(handle.id, job)
            return early.completed, done.stdout, status.stdout, status.exit_code
        finally:
            await env.sandbox_client.delete(handle.id)

    assert asyncio.run(run()) == (False, "went\n", "gone\n", 0)


def test_a_deleted_sandbox_is_an_error_to_use_and_none_to_delete_again() -> None:
    env = whet.SandboxEnv(dataset=TASK)

    async def run() -> None:
        handle = await env.sandbox_client.create(env.sandbox_request)
        waiting = asyncio.ensure_future(env.sandbox_client.wait_for_creation(handle.id))
        await asyncio.sleep(0)
        await env.sandbox_client.delete(handle.id)
        with pytest.raises(whet.SandboxError, match="deleted while it was being made"):
            await waiting
        with pytest.raises(whet.SandboxError, match="has been deleted"):
            await env.sandbox_client.execute_command(handle.id, "true")
        await env.sandbox_client.bulk_delete([handle.id])

    asyncio.run(run())
