"""Searches that a test leads step by step, in a real terminal or beside one."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

PLAYER = Path(__file__).with_name("player.py")
_spec = importlib.util.spec_from_file_location("gepa_player", PLAYER)
assert _spec is not None
assert _spec.loader is not None
_player = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_player)


@pytest.fixture
def player() -> Any:
    """`player.Told(observer)`: a search that a test tells an observer of."""
    return _player


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Played:
    """`player.py` in a terminal: `tell` it what happens, look at `terminal`."""

    def __init__(self, terminal: Any, pipe: Path) -> None:
        self.terminal = terminal
        self._pipe = pipe
        self._commands: IO[str] | None = None

    def tell(self, *lines: str) -> None:
        if self._commands is None:  # waits for the player, who may be started later than the terminal
            self._commands = open(self._pipe, "w", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._commands.write("".join(f"{line}\n" for line in lines))

    def close(self) -> None:
        if self._commands is not None:
            self._commands.close()


@pytest.fixture
def play(terminals: Any, tmp_path: Path) -> Iterator[Callable[..., Played]]:
    """Opens a terminal with the player in it: `play(columns=80, rows=24)`."""
    opened: list[Played] = []

    def open_one(**options: Any) -> Played:
        pipe = tmp_path / f"pipe{len(opened)}"
        os.mkfifo(pipe)
        played = Played(terminals.open([sys.executable, str(PLAYER), str(pipe)], **options), pipe)
        opened.append(played)
        return played

    yield open_one
    for played in opened:
        played.close()
