"""Environments of agents written for `verifiers.envs.experimental`: the agent in a sandbox, its requests as turns."""

import pytest

import whet

SCRIPT = ["41", "ready", "42"]
TASKS = [{"question": "What is 6 times 7?", "answer": "42"}]


def played(env, script=SCRIPT, **options):
    (row,) = env.evaluate_sync(whet.ScriptedClient(script), "policy", **options)["outputs"]
    return row


@pytest.fixture
def solver(agent):
    from verifiers.envs.experimental.cli_agent_env import CliAgentEnv

    class Solver(CliAgentEnv):
        async def post_sandbox_setup(self, state):
            await self.upload_content(state["sandbox_id"], agent, "/app/agent.py")
            await self.upload_content(state["sandbox_id"], state["prompt"][-1]["content"], "/app/task.txt")

        async def post_rollout(self, state):
            state["said"] = await self.read_file(state["sandbox_id"], "/app/answer.txt")

    def right(state, answer) -> float:
        return float(state["said"] == answer)

    def make(run_command="python3 /app/agent.py /app/task.txt", **kwargs):
        return Solver(run_command, dataset=TASKS, rubric=whet.Rubric([right]), **kwargs)

    return make


def test_each_request_of_an_agent_is_a_turn(solver):
    row = played(solver(), state_columns=["trajectory", "agent_exit_code"])
    assert (row["error"], row["reward"], row["stop_condition"]) == (None, 1.0, "agent_completed")
    assert [step["completion"][0]["content"] for step in row["trajectory"]] == SCRIPT
    assert row["trajectory"][2]["prompt"][1]["content"] == "41"
    assert (row["agent_exit_code"], row["metrics"]["agent_error"]) == (0, 0.0)


def test_limit_of_turns_ends_the_agent(solver):
    row = played(solver(max_turns=2))
    assert (row["stop_condition"], row["metrics"]["num_turns"], row["reward"]) == ("max_turns_reached", 2.0, 0.0)


def test_failing_agent_is_an_error_with_what_it_said(solver):
    from verifiers.envs.experimental.cli_agent_env import AgentError

    row = played(solver("echo broken >&2; exit 3"))
    assert row["reward"] is None
    assert row["error"]["error"] == AgentError.__name__
    assert "before any LLM call (exit_code=3): broken" in row["error"]["message"]


def test_image_that_holds_more_than_a_system_is_refused(solver):
    with pytest.raises(whet.WhetError, match=r"Solver wants the image 'team/swe:1'.*stand in for a plain one"):
        played(solver(docker_image="team/swe:1"))


@pytest.fixture
def composed(agent):
    from verifiers.envs.experimental.composable import ComposableEnv, Harness, SandboxSpec, SandboxTaskSet

    class Tests(whet.Rubric):
        def __init__(self):
            super().__init__([self.right])

        async def right(self, state, answer):
            written = await state["sandbox_client"].read_file(state["sandbox_id"], "/app/answer.txt")
            return float(written.content == answer)

        @whet.cleanup
        async def end(self, state):
            await state["sandbox_client"].delete(state["sandbox_id"])

    class Sums(SandboxTaskSet):
        def get_instruction(self, info):
            return info["sum"]

        def get_sandbox_spec(self, info):
            return SandboxSpec()

        def get_rubric(self):
            return Tests()

    def make(**fields):
        run = "python3 $AGENT_WORKDIR/agent.py /task/instruction.md; echo done > /task/log.txt"
        harness = Harness(
            run_command=f"""{run}; echo '{{"turns": 3, "name": "x"}}' > $AGENT_WORKDIR/metrics.json""",
            post_install_uploads={"/app/agent.py": agent},
            metrics_path="{workdir}/m*.json",
            metrics_prefix="agent_",
            log_path="/task/log.txt",
            **fields,
        )
        tasks = Sums([{"info": {"sum": "6 * 7 = ?"}, "answer": "42"}], name="sums")
        return ComposableEnv(tasks, harness, keep_sandbox_for_scoring=True)

    return make


def test_taskset_and_harness_are_joined(composed):
    env = composed()
    row = played(env, state_columns=["agent_logs", "trajectory"])
    assert (row["error"], row["reward"], row["metrics"]["agent_turns"]) == (None, 1.0, 3.0)
    assert row["agent_logs"] == "done"
    assert row["trajectory"][0]["prompt"][0]["content"] == "6 * 7 = ?"
    assert env.taskset.filter(lambda row: False).take(5).dataset.to_list() == []


def test_steps_of_helpers_are_left_out_by_their_headers(composed):
    env = composed(keep_trajectory_step=lambda step, state, headers: headers.get("x-depth") is None)
    row = played(
        env, lambda prompt: "ready" if "helper" in prompt[-1]["content"] else "42", state_columns=["trajectory"]
    )
    assert [step["completion"][0]["content"] for step in row["trajectory"]] == ["42", "42"]


@pytest.mark.parametrize(("answer", "reward"), [("$6 \\\\cdot 7$", 1.0), ("43", 0.0)])
def test_agent_of_a_checkout_answers_a_math_taskset(agent, tmp_path, monkeypatch, answer, reward):
    import datasets
    from verifiers.envs.experimental.composable import ComposableEnv
    from verifiers.envs.experimental.composable.harnesses.rlm import rlm_harness
    from verifiers.envs.experimental.composable.tasksets.math import MathTaskSet

    meta = """import json, os
os.makedirs(".rlm/sessions/1")
json.dump({"metrics": {"turns": int(os.environ["RLM_MAX_TURNS"])}}, open(".rlm/sessions/1/meta.json", "w"))
"""
    program = agent.replace("open(sys.argv[1]).read()", "sys.argv[1]").replace("X-Depth", "X-RLM-Depth") + meta
    (tmp_path / "rlm").write_text(f"#!/usr/bin/env python3\n{program}")
    install = 'mkdir -p ~/.local/bin && install -m 755 "$RLM_CHECKOUT_PATH/rlm" ~/.local/bin\n'
    (tmp_path / "install.sh").write_text(install)
    rows = [{"question": "6 * 7 = ?", "answer": "42", "level": 0.5}, {"question": "1 = ?", "answer": "1", "level": 1.0}]
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: datasets.Dataset.from_list(rows))
    tasks = MathTaskSet("sums", difficulty_key="level", max_avg_reward=0.9, use_judge_fallback=False)
    harness = rlm_harness("/app", local_checkout=tmp_path, rlm_max_turns=3, summarize_at_tokens=(5, 9))
    env = ComposableEnv(tasks, harness, keep_sandbox_for_scoring=True)
    row = played(
        env, lambda prompt: "ok" if "helper" in prompt[-1]["content"] else answer, state_columns=["trajectory"]
    )
    assert (row["error"], row["reward"], row["metrics"]["rlm_turns"]) == (None, reward, 3.0)
    prompts = [step["prompt"][-1]["content"] for step in row["trajectory"]]
    assert prompts == [tasks.get_instruction({"question": "6 * 7 = ?"}), "Are you sure?"]
    assert len(env.taskset.dataset) == 1


def test_agent_without_a_checkout_is_refused(agent):
    from verifiers.envs.experimental.composable.harnesses import rlm_harness

    with pytest.raises(whet.WhetError, match="local_checkout"):
        rlm_harness().get_upload_dirs()
    with pytest.raises(whet.WhetError, match="summarize_at_tokens"):
        rlm_harness(summarize_at_tokens=[9, 5])


@pytest.mark.parametrize(("answer", "reward"), [("42", 1.0), ("43", 0.0)])
def test_harbor_tasks_are_graded_by_their_tests(agent, tmp_path, answer, reward):
    from verifiers.envs.experimental.harbor_env import HarborEnv

    task = tmp_path / "sum"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text('[environment]\ndocker_image = "python:3.12"\n')
    (task / "instruction.md").write_text("6 * 7 into /app/answer.txt\n")
    (task / "tests/test.sh").write_text(
        "test -e /task/instruction.md && grep -qx 42 /app/answer.txt && echo 1.0 > /logs/verifier/reward.txt || "
        "echo '{\"reward\": 0}' > /logs/verifier/reward.json\n"
    )

    class Harbor(HarborEnv):
        async def post_sandbox_setup(self, state):
            await super().post_sandbox_setup(state)
            await self.upload_content(state["sandbox_id"], agent, "/tmp/agent.py")

    env = Harbor("cd $AGENT_WORKDIR && ls /tests/* ; python3 /tmp/agent.py /task/instruction.md", tmp_path)
    row = played(env, ["41", "ready", answer], state_columns=["agent_stderr"])
    assert (row["error"], row["reward"]) == (None, reward)
    assert "/tests/*" in row["agent_stderr"]  # they were not there yet


def test_servers_that_a_harbor_task_declares_are_refused(tmp_path):
    from verifiers.envs.experimental.harbor_env import HarborEnv

    (tmp_path / "sum").mkdir()
    (tmp_path / "sum/task.toml").write_text('[[environment.mcp_servers]]\nname = "x"\n')
    (tmp_path / "sum/instruction.md").write_text("Do it.\n")
    with pytest.raises(whet.WhetError, match=r"sum/task\.toml declares servers of MCP"):
        HarborEnv("true", tmp_path)
