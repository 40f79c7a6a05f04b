"""Ctrl-C and SIGTERM while an environment's code keeps the event loop, in the real commands on a real terminal."""

from __future__ import annotations

import json
import re
import signal
import termios
from pathlib import Path
from typing import Any

import pytest

from whet.rl.stored.stored_run import open_run
from whet.system import signals

HELD = '''
"""Keeps the event loop in setup_state: `load_environment(how)`."""

import itertools
import os
import re
import time

import whet


class Held(whet.SingleTurnEnv):
    async def setup_state(self, state, **kwargs):
        if self.how == "sum":
            sum(itertools.chain(map(self.begins, [0]), range(10**15)))
        self.begins(0)
        if self.how == "loop":
            while True:
                pass
        if self.how == "sleep":
            time.sleep(3600)
        if self.how == "match":
            re.match(r"(a+)+$", "a" * 100 + "b")
        return state

    def begins(self, number):
        os.write(2, b"\\nit begins\\n")
        return number


def load_environment(how):
    rows = [{"question": f"Say {number}", "answer": str(number)} for number in range(20)]
    env = Held(dataset=rows, eval_dataset=rows, system_prompt="Be brief.", rubric=whet.Rubric(funcs=[zero]))
    env.how = how
    return env


def zero(completion):
    return 0.0
'''
TRAIN = """
name = "run"
max_steps = 4
batch_size = 8
rollouts_per_example = 4
[[env]]
id = "./held.py"
args = {{ how = "{how}" }}
[eval]
before = false
[deployment]
threads = 1
"""
COMMANDS = ["train", "eval", "gepa"]
ONE_OF_THEM = ["train", *(pytest.param(command, marks=pytest.mark.parts) for command in COMMANDS[1:])]


@pytest.fixture
def hold(terminals: Any, tmp_path: Path) -> Any:
    """`hold(command, how)`: the command in a terminal, once code of its environment keeps the event loop."""

    def start(command: str, how: str, *, plain: bool = False) -> Any:
        (tmp_path / "held.py").write_text(HELD)
        (tmp_path / "train.toml").write_text(TRAIN.format(how=how))
        args = json.dumps({"how": how})
        words = {
            "train": ["train", "run", "train.toml"],
            "eval": ["eval", "run", "./held.py", "-a", args, "-m", "whet/tiny"],
            "gepa": [
                *[
                    "gepa",
                    "run",
                    "./held.py",
                    "-m",
                    "whet/tiny",
                    "-M",
                    "whet/tiny",
                    "-B",
                    "50",
                    "-n",
                    "3",
                    "-N",
                    "1",
                    "-a",
                ],
                args,
            ],
        }[command]
        env = {"TERM": "dumb"} if plain else {}
        terminal = terminals.open(["whet", *words], columns=120, rows=30, cwd=tmp_path, env=env)
        terminal.wait_for(lambda _: b"it begins" in terminal.raw)
        return terminal

    return start


def is_given_back(terminal: Any) -> bool:
    return bool(terminal.settings()[3] & termios.ECHO) and not terminal.screen.cursor.hidden


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_names_the_code_that_keeps_the_loop_and_the_second_ends(hold: Any, command: str) -> None:
    terminal = hold(command, "loop")
    terminal.send("\x03")
    terminal.wait_for(re.compile(r"waiting for held\.py, line \d+, in \w+; press again to end"))
    terminal.send("\x03")
    assert terminal.wait() == 130
    assert "Traceback" not in terminal.text()
    assert is_given_back(terminal)


@pytest.mark.parametrize("command", ONE_OF_THEM)
def test_sigterm_names_the_code_that_keeps_the_loop_and_the_second_ends(hold: Any, command: str) -> None:
    terminal = hold(command, "sleep", plain=True)
    terminal.process.send_signal(signal.SIGTERM)
    terminal.wait_for(re.compile(r"waiting for held\.py, line \d+, in \w+; a second signal ends the process"))
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.wait() == 143
    assert "Traceback" not in terminal.text()


@pytest.mark.parametrize("command", ONE_OF_THEM)
def test_ctrl_c_inside_a_regular_expression_without_end(hold: Any, command: str) -> None:
    terminal = hold(command, "match")
    terminal.send("\x03")
    terminal.wait_for(re.compile(r"waiting for held\.py, line \d+, in \w+; press again to end"))
    terminal.send("\x03")
    assert terminal.wait() == 130
    assert is_given_back(terminal)


@pytest.mark.parametrize("command", ONE_OF_THEM)
def test_ctrl_c_while_c_code_holds_the_interpreter_lock(hold: Any, command: str) -> None:
    terminal = hold(command, "sum")
    terminal.send("\x03")
    screen = terminal.wait_for(re.compile(r"waiting for (code|held\.py).*; press again to end"))
    in_c = "waiting for code that holds the interpreter lock and cannot be interrupted" in screen
    terminal.send("\x03")  # the first one may have arrived just before the C code began
    assert terminal.wait() == (-signal.SIGKILL if in_c else 130)
    assert is_given_back(terminal)


def test_a_training_run_ended_by_the_second_ctrl_c_is_interrupted(hold: Any, tmp_path: Path) -> None:
    terminal = hold("train", "loop")
    terminal.send("\x03")
    terminal.wait_for("press again to end")
    terminal.send("\x03")
    assert terminal.wait() == 130
    assert open_run(tmp_path / "runs" / "run").state == "interrupted"


def test_rooms_that_call_libraries_of_their_own_are_there() -> None:
    rooms = Path(signals.__file__).parents[1]
    assert [name for name in signals._OWN_LIBRARIES if not (rooms / name).is_dir()] == []
