"""Agents of other projects, from PyPI, as commands in a sandbox.

Set WHET_TEST_AGENTS=1 to run them: their packages are downloaded the first time.
"""

import asyncio
import importlib.util
import json
import os
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from whet.rollouts.groups import run_group

_spec = importlib.util.spec_from_file_location("commands", Path(__file__).parent / "commands.py")
_commands = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_commands)
env_of, roll = _commands.env_of, _commands.roll

pytestmark = [
    pytest.mark.skipif(not os.environ.get("WHET_TEST_AGENTS"), reason="WHET_TEST_AGENTS is not set"),
    pytest.mark.timeout(900),
]

ADDER = '''
import json, os, sys
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)

@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b

prompt = json.load(open(os.environ["WHET_TASK"]))["prompt"]
model = OpenAIChatCompletionsModel("any", AsyncOpenAI()) if sys.argv[1] == "chat" else "any"
agent = Agent(name="adder", instructions="Add.", tools=[add], model=model)
print(Runner.run_sync(agent, prompt[-1]["content"]).final_output)
'''
OPENAI_AGENTS = {"packages": ["openai-agents==0.24.0"]}


def calls(name: str, **arguments) -> dict:
    return {"tool_calls": [{"id": f"call_{len(str(arguments))}", "name": name, "arguments": json.dumps(arguments)}]}


@pytest.mark.parametrize("interface", ["chat", "responses"])
def test_openai_agents_call_their_own_tool_and_go_on(interface) -> None:
    env = env_of(ADDER, args=[interface], sandbox=OPENAI_AGENTS)
    (state,) = roll(env, [calls("add", a=2, b=3), "five"])
    assert (state["error"], state["program"]["stdout"]) == (None, "five\n")
    shown = state["trajectory"][1]["prompt"]
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "tool"]
    assert shown[-1]["content"] == "5"


def test_openai_agents_with_the_tiny_model_are_recorded_right_to_the_token() -> None:
    from whet.inference.loading import load_policy

    env = env_of(ADDER, args=["chat"], sandbox=OPENAI_AGENTS)

    async def attempt():
        policy = load_policy("whet/tiny", threads=1)
        try:
            sampling = {"max_tokens": 8, "seed": 1}
            (state,) = await run_group(env, [env.get_dataset()[0]], policy.client, "whet/tiny", sampling)
            return state
        finally:
            await env.close()
            await policy.engine.close()

    state = asyncio.run(attempt())
    assert state["error"] is None
    (step,) = state["trajectory"]
    assert 0 < len(step["tokens"]["completion_ids"]) <= 8
    assert len(step["tokens"]["completion_logprobs"]) == len(step["tokens"]["completion_ids"])
