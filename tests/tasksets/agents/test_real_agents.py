"""Coding agents that others wrote, unmodified from their registries: each token trained is one that was sampled.

They are installed when a test first needs them.
"""

import asyncio
from dataclasses import dataclass, field

import pytest

import whet
from whet.inference.loading import load_policy
from whet.rl.data.batch import sequences_of
from whet.rollouts.groups import run_group
from whet.tasksets.agents.presets import AGENTS

pytestmark = [pytest.mark.parts, pytest.mark.timeout(1200), pytest.mark.usefixtures("bubblewrap")]


@dataclass
class Expected:
    """How an agent's shell is called, how it ends, and how many conversations its requests are."""

    tool: str
    argument: dict
    last: str | dict = "It is written."
    branches: int = 1
    program: dict = field(default_factory=dict)


def shell(command: str) -> dict:
    return {"command": command}


WRITE = "echo hello > out.txt"
AGENTS_HERE = {
    "bash": Expected("bash", shell(WRITE)),
    "mini-swe-agent": Expected("bash", shell(WRITE), shell("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
    "codex": Expected("exec_command", {"cmd": WRITE}),
    "opencode": Expected("bash", {"command": WRITE, "description": "Writes the file"}),
    "claude-code": Expected("Bash", {"command": WRITE, "description": "Writes the file"}),
    "pi": Expected("bash", shell(WRITE)),
    "qwen-code": Expected("run_shell_command", {"command": WRITE, "is_background": False}),
}


def test_every_agent_is_tried() -> None:
    assert set(AGENTS_HERE) == set(AGENTS)


@pytest.mark.parametrize("name", AGENTS_HERE)
def test_agent_is_trained_on_what_was_sampled(name, attempt, called, agent_installed) -> None:
    agent_installed(name)
    expected = AGENTS_HERE[name]
    last = expected.last if isinstance(expected.last, str) else called(expected.tool, **expected.last)
    texts = [f"I write the file.\n{called(expected.tool, **expected.argument)}", last]
    tried = attempt({"agent": name, "context_tokens": 400_000, **expected.program}, texts)
    state = tried.state
    assert state["error"] is None, state["error"]
    assert (state["stop_condition"], state["reward"]) == ("program_completed", 1.0), state["program"]
    assert tried.differing_tokens() == 0
    assert len(tried.branches) == expected.branches, tried.prompts()
    assert len(tried.engine.samples) == 2


def test_compaction_of_claude_code_is_trained(attempt, called, agent_installed) -> None:
    """Its context is smaller than its first prompt, so that it has its history summarised."""
    agent_installed("claude-code")
    texts = [called("Bash", command=WRITE, description="Writes the file"), "It is written."]
    tried = attempt({"agent": "claude-code", "context_tokens": 32_768}, texts)
    assert (tried.state["error"], tried.state["reward"]) == (None, 1.0)
    assert len(tried.branches) > 1
    assert tried.differing_tokens() == 0


def test_sub_agent_of_opencode_is_a_branch_of_its_own(attempt, called, agent_installed) -> None:
    agent_installed("opencode")
    texts = [
        called("task", description="Write", prompt="Write hello into out.txt.", subagent_type="general"),
        called("bash", command=WRITE, description="Writes the file"),
        "I have written it.",
        "It is written.",
    ]
    tried = attempt({"agent": "opencode", "context_tokens": 400_000}, texts)
    assert (tried.state["error"], tried.state["reward"]) == (None, 1.0)
    assert [[number for number, _, _ in branch.turns] for branch in tried.branches] == [[0, 3], [1, 2]]
    assert tried.differing_tokens() == 0


def test_title_that_opencode_asks_its_small_model_for_is_not_trained(attempt, agent_installed) -> None:
    agent_installed("opencode")
    env = {"OPENCODE_CONFIG_CONTENT": '{"agent": {"title": {"disable": false}}}'}
    tried = attempt({"agent": "opencode", "context_tokens": 400_000, "env": env}, ["It is written."] * 2)
    assert tried.state["error"] is None, tried.state["error"]
    (title,) = (prompt for number, prompt in enumerate(tried.prompts()) if number in tried.left_out)
    assert "title generator" in title[0][1]
    assert (tried.state["num_helper_requests"], len(tried.engine.samples)) == (1, 2)
    assert tried.differing_tokens() == 0


def test_sub_agent_of_claude_code_that_is_to_be_a_small_model_is_trained(attempt, called, agent_installed) -> None:
    agent_installed("claude-code")
    look = {"description": "Look", "prompt": "Look.", "subagent_type": "Explore", "model": "haiku"}
    texts = [called("Agent", **look), *["It is written."] * 3]
    tried = attempt({"agent": "claude-code", "context_tokens": 400_000}, texts)
    assert tried.state["error"] is None, tried.state["error"]
    assert (tried.state["num_helper_requests"], tried.left_out) == (0, set())
    assert any("file search specialist" in prompt[0][1] for prompt in tried.prompts())
    assert tried.differing_tokens() == 0


def test_smollm2_with_the_bash_loop_is_trained_on_what_it_sampled() -> None:
    policy = load_policy("smollm2-135m", threads=1, max_context=2048)
    sampled: list = []
    sample = policy.engine.sample

    async def noted(request, **kwargs):
        made = await sample(request, **kwargs)
        sampled.append((*request.prompt_ids, *made.ids))
        return made

    policy.engine.sample = noted
    question = "Write hello into out.txt. Answer with a command in a block that begins with ```bash."
    program = {"agent": "bash", "args": ["--fenced"]}
    env = whet.Env(whet.Taskset(source=[{"question": question}]), whet.Harness(program=program, max_turns=2))

    async def attempt():
        try:
            return await run_group(env, [env.get_dataset()[0]] * 2, policy.client, "m", {"max_tokens": 48, "seed": 1})
        finally:
            await env.close()
            await policy.engine.close()

    turns = 0
    for state in asyncio.run(attempt()):
        assert state["error"] is None
        for branch in sequences_of(state["trajectory"], temperature=1.0, rollout="r"):
            for _, start, end in branch.turns:
                turns += 1
                assert tuple(branch.ids[:end]) in sampled
                assert branch.trained[start:end].all()
    assert turns == len(sampled) > 0
