"""The rules of a planted task: which instructions its questions need, and how much they help. Pure.

A question names the kinds of things it is about. For each kind there is one instruction, and a prompt that holds it
word for word raises the chance of a right answer. Other instructions do nothing, and some do harm. So the best prompt
is known: all instructions that are needed, and none that does harm.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

SEED_PROMPT = "You answer questions about records."
INSTRUCTIONS = {
    "dates": "Write dates as year, month, day.",
    "amounts": "Write amounts in cents.",
    "names": "Write the family name first.",
    "codes": "Write codes in capital letters.",
    "places": "Name the country of each place.",
    "times": "Give times in UTC.",
    "weights": "Convert weights to grams.",
    "shares": "Write shares as percentages.",
}
"""What questions of each kind need."""
IDLE = ("Be polite.", "You are an expert.", "Think about it calmly.", "Read the question twice.")
HARMFUL = ("Answer with one letter.", "Answer in verse.", "Explain everything at length.")
SENTENCES = (*INSTRUCTIONS.values(), *IDLE, *HARMFUL)
"""The whole grammar of prompts, beside the seed prompt."""
_QUESTION = re.compile(r"Record \d+ \((?P<kinds>[a-z, ]+)\): what does it say\?")


@dataclass(frozen=True, slots=True)
class World:
    """One task."""

    seed: int
    kinds: tuple[str, ...]  # that its questions are about
    base: float = 0.25  # chance of a right answer without any instruction that is needed
    top: float = 0.95  # with all of them
    harm: float = 0.6  # what a harmful instruction leaves of it

    @classmethod
    def of(cls, seed: int, *, kinds: int = 4, **chances: float) -> World:
        """The world of a seed, with so many kinds of questions."""
        return cls(seed, tuple(Random(f"world {seed}").sample(sorted(INSTRUCTIONS), kinds)), **chances)

    @property
    def best(self) -> frozenset[str]:
        """The instructions that the best prompt has."""
        return frozenset(INSTRUCTIONS[kind] for kind in self.kinds)

    def rows(self, split: str, number: int) -> list[dict[str, Any]]:
        """Different questions of one split, each about one or two kinds, with their answers."""
        random = Random(f"{split} {self.seed}")
        first = {"train": 0, "eval": 100_000}[split]
        questions = [
            f"Record {first + place} ({', '.join(random.sample(self.kinds, random.choice((1, 2))))}): what does it say?"
            for place in range(number)
        ]
        return [{"question": question, "answer": answer_of(question)} for question in questions]

    def chance(self, prompt: str, question: str) -> float:
        """Of a right answer to a question under a prompt."""
        present = sentences_in(prompt)
        needed = [INSTRUCTIONS[kind] for kind in kinds_of(question)]
        helped = sum(sentence in present for sentence in needed) / len(needed)
        harmed = sum(sentence in present for sentence in HARMFUL)
        return (self.base + (self.top - self.base) * helped) * self.harm**harmed

    def mean(self, prompt: str) -> float:
        """The mean chance over questions of this world: what an endless evaluation of the prompt would say."""
        pairs = [(one, two) for one in self.kinds for two in self.kinds if one != two]
        single = [self.chance(prompt, f"Record 0 ({kind}): what does it say?") for kind in self.kinds]
        double = [self.chance(prompt, f"Record 0 ({', '.join(pair)}): what does it say?") for pair in pairs]
        return (sum(single) / len(single) + sum(double) / len(double)) / 2


def sentences_in(text: str) -> list[str]:
    """The sentences of the grammar that a text holds."""
    return [sentence for sentence in SENTENCES if sentence in text]


def questions_in(text: str) -> list[str]:
    return [match[0] for match in _QUESTION.finditer(text)]


def kinds_of(question: str) -> list[str]:
    """The kinds of things that a question, or a text with questions, is about."""
    found = [kind for match in _QUESTION.finditer(question) for kind in match["kinds"].split(", ")]
    return list(dict.fromkeys(found))


def answer_of(question: str) -> str:
    """What stands in a record: ten digits that cannot be guessed."""
    return str(int.from_bytes(hashlib.blake2b(question.encode(), digest_size=5).digest())).zfill(10)[-10:]


def draw(*parts: object) -> Random:
    """Chance that follows from what is asked, and from nothing else."""
    return Random("/".join(map(str, parts)))


def text_of(messages: Sequence[dict[str, Any]], *roles: str) -> str:
    """What messages of some roles say."""
    return "\n".join(str(message.get("content") or "") for message in messages if message["role"] in roles)
