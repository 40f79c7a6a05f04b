"""A command is trained on like any environment: exact tokens in every turn, one branch where it keeps its history."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from whet.rl.config import load_run_config
from whet.rl.run import run_training
from whet.rollouts.token_rows import read_rollouts
from whet.system.files import read_lines

_spec = importlib.util.spec_from_file_location("commands", Path(__file__).parent / "commands.py")
_commands = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_commands)

TASKSET = f'''
import whet

AGENT = """{_commands.ASK}
messages = prompt()
for again in (True, False):
    message = said(messages)
    messages.append(message)
    if again:
        messages.append({{"role": "user", "content": "Once more."}})
open("said.txt", "w").write(message["content"] or "")
"""


def source():
    return [{{"question": f"Reverse the text.\\n\\n{{word}}", "answer": word}} for word in ("abc", "bcd", "cde", "def")]


def length(task, state):
    return len(state["artifacts"]["said"]) / 10


def load_environment(config: whet.EnvConfig = whet.EnvConfig()):
    program = {{
        "command": ["python3", "agent.py"],
        "files": {{"agent.py": AGENT}},
        "artifacts": {{"said": {{"path": "said.txt"}}}},
    }}
    return whet.Env(
        whet.Taskset(source=source, rewards=[length], config=config.taskset),
        whet.Harness(program=program, config=config.harness),
    )
'''
CONFIG = """
name = "run"
max_steps = 1
batch_size = 8
rollouts_per_example = 4
learning_rate = 1e-4
runs_directory = "{directory}/runs"
[sampling]
max_tokens = 8
[[env]]
id = "{directory}/commanded.py"
[eval]
before = false
after = false
[deployment]
threads = 1
"""


@pytest.mark.usefixtures("bubblewrap")
def test_a_step_of_the_tiny_model_with_a_command(tmp_path: Path) -> None:
    (tmp_path / "commanded.py").write_text(TASKSET)
    (tmp_path / "run.toml").write_text(CONFIG.format(directory=tmp_path))
    outcome = run_training(load_run_config(tmp_path / "run.toml"), json_output=True)
    assert (outcome.state, outcome.step) == ("finished", 1)
    (metrics,) = read_lines(tmp_path / "runs/run/metrics.jsonl")
    assert metrics["rollouts/branches"] == 1.0
    rollouts = [row for path in (tmp_path / "runs/run/rollouts").glob("*.jsonl") for row in read_rollouts(path)]
    assert len(rollouts) == 8
    for row in rollouts:
        assert (row["error"], len(row["turns"])) == (None, 2)
        assert all(turn["completion_ids"] and turn["completion_logprobs"] for turn in row["turns"])
        first, second = row["turns"]
        whole = [*first["prompt_ids"], *first["completion_ids"]]
        assert second["prompt_ids"][: len(whole)] == whole
