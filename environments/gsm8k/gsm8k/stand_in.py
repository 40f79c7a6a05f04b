"""Made-up word problems, for when the real ones cannot be had: one story, a number that changes step by step.

They have the form of GSM8K rows (question, and a solution whose calculations stand in `<<...>>` and whose answer
follows `####`), but are much more uniform. A score on them says nothing about GSM8K.
"""

from __future__ import annotations

import random
import zlib
from typing import Literal

STEPS = range(2, 9)

NAMES = ("Amara", "Bo", "Chen", "Dalia", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena", "Mateo", "Nia")
ITEMS = ("apples", "beads", "books", "buttons", "cards", "coins", "marbles", "pencils", "shells", "stamps", "stickers")
BOXES = ("bags", "boxes", "jars", "packets")
FRIENDS = ("cousins", "friends", "neighbours", "pupils")

MOST = 2000
"""Beyond this number of things, none are added."""
TRIES = 50
"""Problems made up for each that is wanted: most belong to the other split, and short ones repeat."""


def split_of(question: str) -> Literal["train", "eval"]:
    """A fifth of all problems is for evaluation."""
    return "eval" if zlib.crc32(question.encode()) % 5 == 0 else "train"


def make_problems(split: Literal["train", "eval"], size: int, seed: int, steps: range) -> list[dict[str, str]]:
    """`size` different problems of one split, or as many as turn up; the number of calculations is one of `steps`."""
    rng = random.Random(f"{split} {seed}")
    problems: dict[str, str] = {}
    for _ in range(TRIES * size):
        if len(problems) == size:
            break
        question, solution = make_problem(rng, rng.choice(steps))
        if split_of(question) == split:
            problems[question] = solution
    return [{"question": question, "answer": solution} for question, solution in problems.items()]


def make_problem(rng: random.Random, steps: int) -> tuple[str, str]:
    """A question, and its solution in exactly `steps` calculations."""
    story = Story(rng)
    while story.steps_left(steps) > 1:
        story.event(two=story.steps_left(steps) > 2 and rng.random() < 0.5)
    story.ending()
    return " ".join(story.sentences), "\n".join([*story.lines, f"#### {story.number}"])


class Story:
    """A person and a number of things."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.name, self.item = rng.choice(NAMES), rng.choice(ITEMS)
        self.number = rng.randint(12, 60)
        self.sentences = [f"{self.name} has {self.number} {self.item}."]
        self.lines: list[str] = []

    def steps_left(self, steps: int) -> int:
        return steps - len(self.lines)

    def event(self, two: bool) -> None:
        """What happens next: one calculation, or two."""
        growing = self.number < 20 or (self.number < MOST and self.rng.random() < 0.5)
        if two:
            self._boxes() if growing else self._friends()
        elif growing:
            self._more()
        else:
            self._fewer()

    def ending(self) -> None:
        """The last calculation, and the question."""
        price = self.rng.randint(2, 9)
        halves = [parts for parts in (2, 3, 4, 5, 6) if self.number % parts == 0]
        if halves and self.rng.random() < 0.5:
            parts = self.rng.choice(halves)
            self.sentences.append(
                f"{self.name} puts them all into {parts} equal piles. How many {self.item} are in each pile?"
            )
            self._calculate("/", parts, "Each pile has")
        else:
            self.sentences.append(
                f"{self.name} sells them all for ${price} each. How many dollars does {self.name} get?"
            )
            self._calculate("*", price, "In dollars that makes")

    def _more(self) -> None:
        if self.number < MOST / 3 and self.rng.random() < 0.3:
            times, word = self.rng.choice([(2, "twice"), (3, "three times")])
            self.sentences.append(f"A week later {self.name} has {word} as many.")
            self._calculate("*", times, f"A week later {self.name} has")
        else:
            more = self.rng.randint(5, 50)
            self.sentences.append(f"{self.name} finds {more} more.")
            self._calculate("+", more, f"Then {self.name} has")

    def _fewer(self) -> None:
        fewer = self.rng.randint(2, self.number // 2)
        self.sentences.append(f"{self.name} loses {fewer} of them.")
        self._calculate("-", fewer, f"Then {self.name} has")

    def _boxes(self) -> None:
        boxes, each = self.rng.randint(2, 9), self.rng.randint(3, 12)
        kind = self.rng.choice(BOXES)
        self.sentences.append(f"{self.name} buys {boxes} {kind} with {each} {self.item} each.")
        self.lines.append(f"The {kind} hold <<{boxes}*{each}={boxes * each}>>{boxes * each} {self.item}.")
        self._calculate("+", boxes * each, f"Then {self.name} has")

    def _friends(self) -> None:
        friends = self.rng.randint(2, 5)
        each = self.rng.randint(1, max(1, (self.number - 2) // friends))
        kind = self.rng.choice(FRIENDS)
        self.sentences.append(f"{self.name} gives {each} to each of {friends} {kind}.")
        self.lines.append(f"The {kind} get <<{friends}*{each}={friends * each}>>{friends * each} {self.item}.")
        self._calculate("-", friends * each, f"Then {self.name} has")

    def _calculate(self, sign: str, by: int, words: str) -> None:
        before = self.number
        self.number = {"+": before + by, "-": before - by, "*": before * by, "/": before // by}[sign]
        self.lines.append(f"{words} <<{before}{sign}{by}={self.number}>>{self.number}.")
