"""The page about own training loops: its programs run against its server, its tables are what the code has."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tinker", reason="the SDK is in the extra `tinker`")

PAGE = Path(__file__).parents[2] / "docs" / "tinker.md"


@pytest.mark.parts
def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    sentences, reversing = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    whet = (
        [sys.executable, "-m", "whet.cli.main"] if not (w := Path(sys.executable).with_name("whet")).exists() else [w]
    )
    command = [*whet, "tinker", "serve", "whet/tiny", "--data", str(tmp_path / "data"), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        key = server.stderr.readline().rpartition(": ")[2].strip()
        line = server.stderr.readline()
        assert line.startswith("whet/tiny at http://127.0.0.1:")
        url = line.split()[2].rstrip(":")
        environment = {"TINKER_BASE_URL": url, "TINKER_API_KEY": key, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            [sys.executable, "-c", sentences], env=environment, capture_output=True, text=True, timeout=200
        )
        assert ran.returncode == 0, ran.stderr
        losses = [float(one) for one in re.findall(r"loss ([\d.]+)", ran.stdout)]
        assert losses[-1] < losses[0] / 2
        assert float(ran.stdout.splitlines()[-1]) < losses[-1]
        ran = subprocess.run(
            [sys.executable, "-c", reversing],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert ran.returncode == 0, ran.stderr
        rewards = [float(one) for one in re.findall(r"reward ([\d.]+)", ran.stdout)]
        assert sum(rewards[-3:]) > sum(rewards[:3]) + 0.2
        gateway = [*whet, "serve", "whet/tiny", "--adapter", "mine=reversed", "--port", "0"]
        with subprocess.Popen(gateway, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as serving:
            assert serving.stderr is not None
            address = next(line for line in serving.stderr if " at http" in line).split(" at ")[1].split()[0]
            model = ["-m", "whet/tiny:mine", "-b", address, "-n", "2", "-r", "1", "--json"]
            evaluated = subprocess.run(
                [*whet, "eval", "run", "reverse-text", *model],
                env={**environment, "OPENAI_API_KEY": "none"},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=200,
            )
            serving.send_signal(signal.SIGINT)
        assert evaluated.returncode == 0, evaluated.stderr
        status = subprocess.run(
            [*whet, "tinker", "status"], env=environment, capture_output=True, text=True, timeout=100
        )
        assert "weights/sentences" in status.stdout, status.stderr
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


def test_the_table_of_losses_is_complete() -> None:
    from whet.tinker.losses import LOSSES

    page = PAGE.read_text(encoding="utf-8")
    for name, loss in LOSSES.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert all(f"`{key}` {value:g}" in row for key, value in loss.settings.items())
