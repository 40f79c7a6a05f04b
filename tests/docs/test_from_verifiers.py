"""The ported package of docs/migrating.md runs and is scored."""

import re
from pathlib import Path

import pytest

import whet

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()


@pytest.mark.parametrize(("said", "reward"), [("42", 1.0), ("41", 0.0)])
def test_the_ported_agent_environment_runs(tmp_path: Path, said: str, reward: float, bubblewrap: None) -> None:
    pytest.importorskip("uvicorn")
    (source,) = re.findall(r'```python title="solver.py"\n(.*?)```', PAGE, re.DOTALL)
    path = tmp_path / f"solver_that_says_{said}.py"
    path.write_text(source)
    env = whet.load_environment(str(path))
    asked = []

    def answer(state: whet.State, turn: int) -> str:
        asked.append(state["trajectory_id"])
        return said

    (row,) = env.evaluate_sync(whet.ScriptedClient(answer), "m")["outputs"]
    assert row["error"] is None
    assert (row["reward"], len(asked)) == (reward, 1)
    assert row["completion"][-1]["content"] == said
