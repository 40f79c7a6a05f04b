"""Sessions of evaluations that a test leads step by step, in a real terminal or beside one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PLAYER = Path(__file__).with_name("player.py")


@pytest.fixture(scope="session")
def player(players: Any) -> Any:
    """`player.plan` and `player.row`: what observers are told."""
    return players.load(PLAYER, "player")


@pytest.fixture
def clock(players: Any) -> Any:
    return players.Clock()


@pytest.fixture
def play(players: Any, terminals: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens terminals with the player in them; see `players.players`."""
    with players.players(PLAYER, terminals, tmp_path) as open_one:
        yield open_one
