"""A taskset is trained on like any environment, with exact tokens in every turn."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from whet.rl.config import load_run_config
from whet.rl.data.curriculum import DrawnTask
from whet.rl.loop.group import Group, GroupFilter
from whet.rl.run import run_training
from whet.rollouts.token_rows import read_rollouts
from whet.system.files import read_lines
from whet.types import State

TASKSET = '''
import whet


def letter(position: int, task, state) -> str:
    """Look at a letter.

    Args:
        position: Counted from 1.
    """
    return task["answer"][position - 1]


async def twice(task, state, session):
    messages = [*state["prompt"]]
    messages += [await session.ask(messages), whet.UserMessage("Once more.")]
    await session.ask(messages)


class Mirror(whet.Taskset):
    @whet.reward
    def length(self, task, state):
        return len(state["completion"][-1]["content"] or "") / 10

    @whet.reward(stage="group", weight=0.0)
    def group_length(self, tasks, states):
        return [float(len(states))] * len(states)

    @whet.advantage
    def by_place(self, tasks, states):
        return [float(place) - 1.5 for place in range(len(states))]


def rows():
    return [{"question": f"Reverse the text.\\n\\n{word}", "answer": word} for word in ("abc", "bcd", "cde", "def")]


def load_environment(config: whet.EnvConfig = whet.EnvConfig()):
    taskset = Mirror(source=rows, toolsets=[letter], user=again, config=config.taskset)
    return whet.Env(taskset, whet.Harness(config=config.harness))


def again(transcript):
    return [{"role": "user", "content": "Again."}] if len(transcript) < 4 else []
'''

CONFIG = """
name = "run"
max_steps = 2
batch_size = 8
rollouts_per_example = 4
learning_rate = 1e-4
runs_directory = "{runs}"
[sampling]
max_tokens = 8
[[env]]
id = "{module}"
name = "mirror"
[env.harness]
max_turns = 3
{harness}
[eval]
before = false
after = false
[deployment]
threads = 1
"""


def train(directory: Path, name: str, harness: str = "") -> list[dict]:
    module = directory / f"{name}.py"
    module.write_text(TASKSET)
    path = directory / "run.toml"
    path.write_text(CONFIG.format(runs=directory / "runs", module=module, harness=harness))
    outcome = run_training(load_run_config(path), json_output=True)
    assert (outcome.state, outcome.step) == ("finished", 2)
    return list(read_lines(directory / "runs" / "run" / "metrics.jsonl"))


@pytest.mark.parametrize(
    ("name", "harness"), [("looped_mirror", ""), ("programmed_mirror", 'program = "programmed_mirror:twice"')]
)
def test_every_rollout_is_one_branch_of_exact_tokens(tmp_path: Path, name: str, harness: str) -> None:
    for metrics in train(tmp_path, name, harness):
        assert metrics["rollouts/branches"] == 1.0
    rollouts = [row for path in sorted((tmp_path / "runs/run/rollouts").glob("*.jsonl")) for row in read_rollouts(path)]
    assert len(rollouts) == 16
    for row in rollouts:
        assert row["error"] is None
        assert len(row["turns"]) == row["metrics"]["num_turns"] >= 2
        assert all(turn["completion_ids"] and turn["completion_logprobs"] for turn in row["turns"])
        assert row["metrics"]["group_length"] == 4.0
    assert sorted(row["advantage"] for row in rollouts) == sorted([-1.5, -0.5, 0.5, 1.5] * 4)


def test_a_group_has_the_advantages_that_its_environment_set() -> None:
    given = ((1.0, 7.0), (0.0, -3.0))
    states = [State(reward=reward, advantage=advantage, error=None) for reward, advantage in given]
    group = Group(0, DrawnTask(number=0, environment=0, index=0, epoch=0), "mirror", states, own_advantages=True)
    assert np.array_equal(group.own_advantages_G, [7.0, -3.0])
    assert GroupFilter().decide(group) is group
