"""What a family of terminal tasks makes, and the words of which its files are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

_WORDS = """apple autumn basket blue bread bridge candle castle cloud coffee copper corner desert dragon eagle engine
feather field finger forest garden glass green harbor hammer honey island jacket kettle ladder lemon letter market
meadow mirror morning mountain needle ocean orange paper pencil pepper planet pocket purple rabbit river road rocket
saddle salt shadow silver stone storm summer sugar table tiger timber valley velvet violet wagon water whistle window
winter wizard yellow zebra"""
_NAMES = "Ada Ben Cleo Dora Emil Finn Gina Hugo Iris Jonas Kira Leo Mona Nils Olga Paul Rosa Sven Tara Uwe"
_SURNAMES = "Adler Bauer Costa Dubois Evans Ferro Gomez Hansen Ito Jansen Kaya Lopez Meyer Novak Olsen Perez"
WORDS, NAMES, SURNAMES = _WORDS.split(), _NAMES.split(), _SURNAMES.split()
CITIES = ["Berlin", "Cairo", "Hanoi", "Lima", "Oslo", "Paris", "Quito", "Rome", "Seoul", "Tunis"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A task before it is a folder. Paths are below /app, where all scripts begin.

    `solution` is bash, and one line without double quotes and backslashes at level 1: there the instruction of level 0
    quotes it. `checks` are arguments of the functions of `check.py`. `shortcut` is what a lazy agent would do, in bash,
    which must not be enough. `setup` is run by sh, once the files are there.
    """

    instruction: str
    solution: str
    checks: list[dict[str, Any]]
    shortcut: str
    files: dict[str, str] = field(default_factory=dict)
    setup: str = ""


Family = Callable[[Random, int], Draft]
"""From a generator of random numbers and a level of 1 to 3."""


def text(path: str, content: str) -> dict[str, Any]:
    return {"check": "text", "path": path, "text": content}


def sentence(rng: Random, count: int, words: list[str] | None = None) -> str:
    return " ".join(rng.choices(words or WORDS, k=count))


def lines(items: list[str]) -> str:
    return "".join(f"{item}\n" for item in items)
