"""`openenv:` against the servers of OpenEnv's own environments (`make openenv`)."""

from pathlib import Path

import pytest

import whet

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-openenv"
PYTHON = str(VENV / "bin" / "python")

pytestmark = [pytest.mark.parts, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def environments(need):
    need("openenv", "environments")


def id_of(name):
    return f"openenv:{VENV / 'OpenEnv' / 'envs' / name}"


def play(name, answers, n=1, **kwargs):
    arguments = {"python": PYTHON, "num_train_examples": n, "num_eval_examples": 0, **kwargs}
    env = whet.load_environment(id_of(name), **arguments)
    return env.evaluate_sync(whet.ScriptedClient(answers), "m")["outputs"]


def test_grid_world_has_a_reward_per_step_and_ends_at_the_goal():
    rows = play("grid_world_env", ["DOWN"] * 4 + ["RIGHT"] * 4, n=3)
    assert [(row["reward"], row["stop_condition"], row["error"]) for row in rows] == [
        (pytest.approx(0.3), "is_done", None)
    ] * 3


def test_maze_has_one_session_and_all_rollouts_begin_at_its_start():
    rows = play("maze_env", ["1"], n=4, max_turns=1)
    assert [row["error"] for row in rows] == [None] * 4
    assert len({row["prompt"][-1]["content"] for row in rows}) == 1


def test_echo_offers_its_tools():
    call = whet.AssistantMessage("", tool_calls=[whet.ToolCall("c", "echo_message", '{"message": "hi"}')])
    wrong = whet.AssistantMessage("", tool_calls=[whet.ToolCall("c", "nothing", "{}")])
    (row,) = play("echo_env", [call, wrong, "done"])
    answers = [message["content"] for message in row["completion"] if message["role"] == "tool"]
    assert (answers, row["error"]) == (["hi", "Error: Unknown tool: 'nothing'"], None)


def test_reasoning_gym_scores_an_answer():
    arguments = {"dataset_name": "chain_sum", "size": 1}

    def solve(prompt):
        return str(eval(prompt[-1]["content"].split("problem:")[-1].split("=")[0]))

    rows = play("reasoning_gym_env", solve, n=4, reset_args=arguments)
    assert [(row["reward"], row["error"]) for row in rows] == [(1.0, None)] * 4
    assert len({row["prompt"][-1]["content"] for row in rows}) == 4


def test_textarena_plays_a_game(monkeypatch):
    monkeypatch.setenv("TEXTARENA_ENV_ID", "GuessTheNumber-v0")
    monkeypatch.setenv("TEXTARENA_DOWNLOAD_NLTK", "0")
    rows = play("textarena_env", ["[10]", "[5]"], n=2, max_turns=2, observation_fields=["messages"])
    assert [row["error"] for row in rows] == [None] * 2
    assert all("guess" in row["completion"][1]["content"] for row in rows)
