"""`OpenCodeEnv` with OpenCode itself, as it comes from its registry."""

import json

import pytest

import whet
from whet.types import AssistantMessage, ToolCall

INSTALLS = """set -e
apt-get update && apt-get install -y curl
if {install_command}; then echo ready; fi
export PATH="$HOME/.opencode/bin:$PATH"
mkdir -p ~/.config/opencode
export OPENAI_MODEL="whet/$OPENAI_MODEL"
SCHEMA_DOLLAR='$'
cat > ~/.config/opencode/opencode.json << EOFCONFIG
{config_json}
EOFCONFIG
cd {agent_workdir}
cat {prompt_path} | opencode run 2>&1 | tee {logs_path}
"""


@pytest.mark.parts
@pytest.mark.timeout(900)
@pytest.mark.parametrize("template", [{}, {"run_command_template": INSTALLS}], ids=["whet's", "that of a package"])
def test_opencode_attempts_a_task(template, agent_installed):
    agent_installed("opencode")
    from verifiers.envs.experimental.opencode_env import OpenCodeEnv

    def right(state) -> float:
        return float(state["answer_file"] == "42\n")

    class Solver(OpenCodeEnv):
        async def post_rollout(self, state):
            state["answer_file"] = await self.read_file(state["sandbox_id"], "/app/answer.txt")
            await super().post_rollout(state)

    def answer(prompt, tools):
        if any(message["role"] == "tool" for message in prompt):
            return "It is written."
        assert "6 times 7" in str(prompt[-1]["content"])
        names = {tool["name"] for tool in tools}
        assert ("bash" in names, "task" in names) == (True, False)
        arguments = {"command": "echo 42 > answer.txt", "description": "Writes the file"}
        return AssistantMessage(content="", tool_calls=[ToolCall("c1", "bash", json.dumps(arguments))])

    rows = [{"question": "What is 6 times 7? Into answer.txt.", "answer": "42"}]
    env = Solver(dataset=rows, rubric=whet.Rubric([right]), timeout_seconds=300, **template)
    (row,) = env.evaluate_sync(whet.ScriptedClient(answer), "policy", state_columns=["agent_logs"])["outputs"]
    assert (row["error"], row["reward"], row["stop_condition"]) == (None, 1.0, "agent_completed"), row["agent_logs"]
    assert (row["metrics"]["bash_calls"], row["metrics"]["num_turns"]) == (1.0, 2.0)


@pytest.mark.parts
@pytest.mark.timeout(900)
def test_opencode_attempts_a_task_of_a_taskset(agent_installed):
    agent_installed("opencode")
    from verifiers.envs.experimental.composable import ComposableEnv, SandboxSpec, SandboxTaskSet
    from verifiers.envs.experimental.composable.harnesses.opencode import opencode_harness
    from verifiers.rubrics.experimental.hybrid_math_rubric import RemoteHybridMathRubric

    class Sums(SandboxTaskSet):
        def get_instruction(self, info):
            return info["sum"]

        def get_sandbox_spec(self, info):
            return SandboxSpec()

        def get_rubric(self):
            return RemoteHybridMathRubric()

    def answer(prompt, tools):
        if any(message["role"] == "tool" for message in prompt):
            return "It is written."
        assert ("Be short." in str(prompt[0]["content"]), "6 times 7" in str(prompt[-1]["content"])) == (True, True)
        assert "task" not in {tool["name"] for tool in tools}
        arguments = {"command": "echo 42 > answer.txt", "description": "Writes the file"}
        return AssistantMessage(content="", tool_calls=[ToolCall("c1", "bash", json.dumps(arguments))])

    tasks = Sums([{"info": {"sum": "What is 6 times 7? Into answer.txt."}, "answer": "42"}], name="sums")
    harness = opencode_harness(task_system_prompt="Be short.", disabled_tools=["question", "task"])
    env = ComposableEnv(tasks, harness, keep_sandbox_for_scoring=True, timeout_seconds=300)
    (row,) = env.evaluate_sync(whet.ScriptedClient(answer), "policy", state_columns=["agent_logs"])["outputs"]
    assert (row["error"], row["reward"], row["stop_condition"]) == (None, 1.0, "agent_completed"), row["agent_logs"]
