"""`whet gepa run` as a person meets it: the real command in a real terminal, stopped half-way and gone on with."""

from __future__ import annotations

import json
import re
import termios
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from planted.policy import answer
from planted.reflection import Proposer
from planted.server import Endpoint
from planted.world import World

pytest.importorskip("gepa")
pytest.importorskip("openai")

PLANTED = Path(__file__).parent / "planted"
WAITING = re.compile(r"planted with policy.*the reflection model writes.*proposals  [1-9] so far.*q stop", re.DOTALL)
KEY = {"OPENAI_API_KEY": "sesame"}


class Models:
    """The two endpoints of a planted task. From the third question on, the reflection model is silent at first."""

    def __init__(self) -> None:
        self.policy = Endpoint(partial(answer, World.of(0, kinds=3)))
        self._proposer = Proposer(0, insight=0.6)
        self.reflection = Endpoint(self._propose)
        self._asked = 0
        self.answers = False  # whether the third question and those after it are answered

    def _propose(self, body: dict[str, Any], seen: int) -> Any:
        self._asked += 1
        self.reflection.latency_s = 3600 if self._asked >= 3 and not self.answers else 0.0
        return self._proposer.answer(body, seen)

    def command(self) -> list[str]:
        """A search of 120 calls."""
        words = ["whet", "gepa", "run", str(PLANTED), "-a", json.dumps({"seed": 0, "kinds": 3}), "--name", "planted"]
        words += ["-m", "policy", "-b", self.policy.url, "-M", "reflection"]
        words += ["--reflection-base-url", self.reflection.url, "-B", "120", "-N", "12", "-c", "4", "--seed", "0"]
        return words


@pytest.fixture
def models() -> Iterator[Models]:
    two = Models()
    with two.policy, two.reflection:
        yield two


def test_stopped_in_the_terminal_and_resumed_it_prints_the_evaluation_command(
    terminals: Any, models: Models, tmp_path: Path
) -> None:
    terminal = terminals.open(models.command(), columns=110, rows=30, cwd=tmp_path, env=KEY)
    screen = terminal.wait_for(
        re.compile(r"planted with policy.*the reflection model writes.*proposals  [1-9] so far.*q stop", re.DOTALL)
    )
    assert "120 calls: 12 for the first prompt on 12 validation examples" in screen
    assert re.search(r"best {7}(the seed|candidate \d), [01]\.\d{3} on validation", screen)
    terminal.send("\x03")
    models.answers = True
    assert terminal.wait() == 130
    text = terminal.text()
    assert "q stop" not in text
    assert "Traceback" not in text
    assert re.search(r"continue +whet gepa run --resume runs/planted", text)
    assert terminal.settings()[3] & termios.ECHO
    assert not terminal.screen.cursor.hidden
    before = len((tmp_path / "runs/planted/candidates.jsonl").read_text().splitlines())

    again = terminals.open(
        ["whet", "gepa", "run", "--resume", "runs/planted"], columns=110, rows=40, cwd=tmp_path, env=KEY
    )
    assert again.wait() == 0
    text = again.text()
    assert re.search(r"rejected$", text, re.MULTILINE)
    assert re.search(r"state +finished: ", text)
    assert re.search(r"evaluate +whet eval run", text)
    numbers = [json.loads(line)["number"] for line in (tmp_path / "runs/planted/candidates.jsonl").open()]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= before
    assert (tmp_path / "runs/planted/report.html").is_file()
