"""What the scripted reflection model says: the text it is shown with one instruction more, less or other. Pure.

It has as much insight as it is given: with that chance it adds what a question it was shown needs, otherwise it draws
any change from the grammar. Some of its answers are of no use, in the ways in which models' are. It reads the questions
of whet, and of plain `gepa`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any

from planted.world import INSTRUCTIONS, SENTENCES, draw, kinds_of, questions_in, sentences_in, text_of

_OURS = re.compile(
    r"^\[\[\w+ the text as it is\]\]\n(?P<text>.*?)\n^\[\[\w+ end of the text\]\]", re.DOTALL | re.MULTILINE
)
_PLAIN = re.compile(r"^```\n(?P<text>.*?)\n```", re.DOTALL | re.MULTILINE)
_MOST = re.compile(r"[Aa]t most (?P<most>[\d,]+) characters")
USELESS = ("empty", "unchanged", "too long", "refused")


@dataclass(frozen=True, slots=True)
class Proposer:
    """How good the model is at it."""

    seed: int = 0
    insight: float = 0.4  # chance of adding what a question that was shown needs
    useless: float = 0.1  # chance of an answer of no use
    useless_as: tuple[str, ...] = USELESS  # ... and of which kinds

    def answer(self, body: dict[str, Any], number: int) -> dict[str, Any] | None:
        """The message that answers a request; None for one that a content filter refuses."""
        request = text_of(body["messages"][:1], "user", "system")
        current = current_text(request)
        # Not of the wording around it: that may change, and what was found with it should not.
        luck = draw("reflection", self.seed, current, questions_in(request), len(body["messages"]), number)
        if luck.random() < self.useless:
            text = _useless(luck.choice(self.useless_as), current, request)
        else:
            text = self._changed(current, kinds_of(request), luck)
        return None if text is None else {"role": "assistant", "content": _wrapped(text, request)}

    def _changed(self, current: str, kinds: list[str], luck: Random) -> str:
        present = sentences_in(current)
        absent = [sentence for sentence in SENTENCES if sentence not in present]
        wanted = [INSTRUCTIONS[kind] for kind in kinds if INSTRUCTIONS[kind] in absent]
        if wanted and luck.random() < self.insight:
            return _with(current, luck.choice(wanted), luck)
        move = luck.choice(("add", "remove", "replace")) if present and absent else "add" if absent else "remove"
        text = current if move == "add" else _without(current, luck.choice(present))
        return text if move == "remove" else _with(text, luck.choice(absent), luck)


def current_text(request: str) -> str:
    """The text that is to be improved."""
    found = _OURS.search(request) or _PLAIN.search(request)
    return found["text"] if found else ""


def _with(text: str, sentence: str, luck: Random) -> str:
    """Somewhere after the first line: models do not write the same text twice."""
    lines = text.splitlines()
    lines.insert(luck.randint(1, max(1, len(lines))), sentence)
    return "\n".join(lines)


def _without(text: str, sentence: str) -> str:
    return "\n".join(line for line in text.replace(sentence, "").splitlines() if line.strip())


def _useless(how: str, current: str, request: str) -> str | None:
    most = _MOST.search(request)
    longer = int(most["most"].replace(",", "")) + 1 if most else 50_000
    padded = current.ljust(longer, ".")
    return {"empty": "", "unchanged": current, "too long": padded, "refused": None}[how]


def _wrapped(text: str, request: str) -> str:
    """In the form that is asked for."""
    return f"Here it is.\n<new_text>\n{text}\n</new_text>" if "<new_text>" in request else f"```\n{text}\n```"
