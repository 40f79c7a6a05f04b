"""Programs that draw what a test tells them, in a real terminal: what the tests of every live view need."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any


def load(program: Path, name: str) -> ModuleType:
    """The player as a module, for a test that needs what it draws from."""
    spec = importlib.util.spec_from_file_location(name, program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Played:
    """A player in a terminal: `tell` it what happens, look at `terminal`."""

    def __init__(self, terminal: Any, command: list[str]) -> None:
        self.terminal = terminal
        self.command = command  # the player's own
        self._commands: IO[str] | None = None

    def tell(self, *lines: str) -> None:
        if self._commands is None:  # waits for the player, who may be started later than the terminal
            self._commands = open(self.command[-1], "w", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._commands.write("".join(f"{line}\n" for line in lines))

    def close(self) -> None:
        if self._commands is not None:
            self._commands.close()


@contextmanager
def players(program: Path, terminals: Any, folder: Path) -> Iterator[Callable[..., Played]]:
    """Opens terminals with the player in them: `play(columns=80, rows=24)`; `command` wraps the player's own."""
    opened: list[Played] = []

    def open_one(command: Callable[[list[str]], list[str]] = list, **options: Any) -> Played:
        pipe = folder / f"pipe{len(opened)}"
        os.mkfifo(pipe)
        own = [sys.executable, str(program), str(pipe)]
        played = Played(terminals.open(command(own), **options), own)
        opened.append(played)
        return played

    yield open_one
    for played in opened:
        played.close()
