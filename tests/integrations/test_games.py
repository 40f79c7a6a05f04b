"""`ReasoningGymEnv` and `TextArenaEnv` with the real packages: every task loads, ten and more are played."""

import json
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parts
@pytest.mark.timeout(600)
def test_tasks_and_games_of_the_real_packages(need):
    venv = need("openenv", "environments")
    command = [venv / "bin" / "python", Path(__file__).with_name("games_worker.py")]
    done = subprocess.run(
        [*command, f"{ROOT / 'src'}:{sysconfig.get_path('purelib')}"], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert len(result["loaded"]) > 90
    assert {tuple(sizes) for sizes in result["loaded"].values()} == {(2, 1)}
    assert len(result["solved"]) >= 10
    for name, rows in result["solved"].items():
        assert rows == [[1.0, None]] * 2, name
    assert len(result["games"]) >= 10
    for name, rows in result["games"].items():
        assert [(isinstance(reward, float), error) for reward, error in rows] == [(True, None)] * 2, name
    assert "Did you mean 'chain_sum'?" in result["wrong"]
