"""Scripted experts of chosen quality: what whet/tiny imitates before reinforcement learning.

An expert reads a conversation as text, exactly as a model would be shown it, and writes the next assistant message. It
knows no solution that is not in the text: it reverses the given letters and halves the given range. With a
probability called its skill it is right, and otherwise wrong in one of many ways. So an imitator's likeliest answer is
the right one, while sampling at temperature 1 succeeds only sometimes: the variance inside groups that reinforcement
learning needs.

Pure functions of text and a random generator; nothing here knows tokens, environments or torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase

TURN_END = "<|im_end|>"
SIGNS = {"plus": "+", "minus": "-", "times": "*"}


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt in the ChatML format, taken apart. `said[i]` is the text of turn i, whose role is `roles[i]`."""

    roles: list[str]
    said: list[str]

    @classmethod
    def read(cls, prompt: str) -> Conversation:
        turns = [turn.split("\n", 1) for turn in prompt.split("<|im_start|>")[1:-1]]
        return cls([role for role, _ in turns], [text.removesuffix("\n").removesuffix(TURN_END) for _, text in turns])

    def by(self, role: str) -> list[str]:
        return [text for each, text in zip(self.roles, self.said, strict=True) if each == role]

    @property
    def task(self) -> str:
        return self.by("user")[0]


Writer = Callable[[Conversation, Random], str]


@dataclass(frozen=True, slots=True)
class Expert:
    """Right with probability `skill` at every turn."""

    right: Writer
    wrong: Writer
    skill: float

    def __call__(self, conversation: Conversation, rng: Random) -> str:
        return (self.right if rng.random() < self.skill else self.wrong)(conversation, rng)


def reverse_right(conversation: Conversation, rng: Random) -> str:
    return _text(conversation)[::-1]


def reverse_wrong(conversation: Conversation, rng: Random) -> str:
    """The text as it was, its letters shuffled, or other letters."""
    text, way = _text(conversation), rng.random()
    if way < 0.25:
        return text
    if way < 0.5:
        return "".join(rng.sample(text, len(text)))
    return "".join(rng.choices(ascii_lowercase, k=max(2, len(text) + rng.choice((-1, 0, 0, 1)))))


def sort_right(conversation: Conversation, rng: Random) -> str:
    return "\n".join(sorted(name for turn in _names(conversation) for name in turn))


def sort_wrong(conversation: Conversation, rng: Random) -> str:
    """Mostly the new names at the end, where they do not belong; else any order, one name of all, or no names.

    The first is as likely as the right answer and easier to write, so greedy, too, falls for it: a habit to unlearn.
    """
    *earlier, new = _names(conversation)
    names, way = [name for turn in (*earlier, new) for name in turn], rng.random()
    if earlier and rng.random() < 0.75:
        return "\n".join(sorted(names[: -len(new)]) + new)
    if way < 0.2:
        return "\n".join(rng.sample(names, len(names)))
    if way < 0.4:
        return rng.choice(names)
    letters = [rng.choices(ascii_lowercase, k=3) for _ in names]
    return "\n".join("".join(each).capitalize() for each in letters)


def calculator_right(conversation: Conversation, rng: Random) -> str:
    left, word, right = _sum(conversation)
    return _result(conversation) or _tool_call(f"{left}{SIGNS[word]}{right}")


def calculator_wrong(conversation: Conversation, rng: Random) -> str:
    """Another number than the tool found; before that no call, a call for something else, or one that is no JSON."""
    left, word, right = _sum(conversation)
    result, way = _result(conversation), rng.random()
    if result or way < 0.25:
        return _another_number(result or left, rng)
    if way < 0.5:
        return _tool_call(f"{left}{rng.choice('+-*/')}{right}")
    if way < 0.75:
        return _tool_call(f"{_another_number(left, rng)}{SIGNS[word]}{_another_number(right, rng)}")
    return _tool_call(f"{left}{SIGNS[word]}{right}").replace('"}}', rng.choice(("}}", '"}', "}")))


def guess_right(conversation: Conversation, rng: Random) -> str:
    low, high = _range(conversation)
    for guess, reply in zip(conversation.by("assistant"), conversation.by("user")[1:], strict=True):
        if guess.isdigit() and "higher" in reply:
            low = max(low, int(guess) + 1)
        elif guess.isdigit() and "lower" in reply:
            high = min(high, int(guess) - 1)
    return str((low + high) // 2)


def guess_wrong(conversation: Conversation, rng: Random) -> str:
    """Some number of the range, whatever was said before, or any number."""
    return str(rng.randint(*(_range(conversation) if rng.random() < 0.4 else (1, 99))))


def arithmetic_right(conversation: Conversation, rng: Random) -> str:
    return f"\\boxed{{{_arithmetic_result(conversation)}}}"


def arithmetic_wrong(conversation: Conversation, rng: Random) -> str:
    """No box, or another number in it."""
    result = _arithmetic_result(conversation)
    return result if rng.random() < 0.2 else f"\\boxed{{{_another_number(result, rng)}}}"


EXPERTS: dict[str, Expert] = {
    "reverse-text": Expert(reverse_right, reverse_wrong, skill=0.45),
    "alphabet-sort": Expert(sort_right, sort_wrong, skill=0.44),
    "calculator": Expert(calculator_right, calculator_wrong, skill=0.78),
    "guess-number": Expert(guess_right, guess_wrong, skill=0.58),
    "arithmetic": Expert(arithmetic_right, arithmetic_wrong, skill=0.55),
}
"""By environment id. The skills are such that rewards at temperature 1 come out near one half."""


def _text(conversation: Conversation) -> str:
    return conversation.task.split("\n\n", 1)[1]


def _names(conversation: Conversation) -> list[list[str]]:
    """The names of each turn."""
    return [said.split("\n\n", 1)[1].split("\n") for said in conversation.by("user")]


def _sum(conversation: Conversation) -> tuple[str, str, str]:
    match = re.search(r"What is (\d+) (plus|minus|times) (\d+)\?", conversation.task)
    assert match, conversation.task
    return match[1], match[2], match[3]


def _result(conversation: Conversation) -> str | None:
    """What the tool answered last, if it was called."""
    answers = re.findall(r"<tool_response>\n(.*)\n</tool_response>", conversation.said[-1])
    return answers[-1] if answers else None


def _range(conversation: Conversation) -> tuple[int, int]:
    match = re.search(r"from (\d+) to (\d+)", conversation.task)
    assert match, conversation.task
    return int(match[1]), int(match[2])


def _arithmetic_result(conversation: Conversation) -> str:
    match = re.search(r"What is (\d+) ([+-]) (\d+)\?", conversation.task)
    assert match, conversation.task
    left, right = int(match[1]), int(match[3])
    return str(left + right if match[2] == "+" else left - right)


def _another_number(number: str, rng: Random) -> str:
    """A number of about as many digits, hardly ever the same."""
    if rng.random() < 0.5 or not number.isdigit():
        return str(rng.randint(0, 10 ** max(1, len(number)) - 1))
    index = rng.randrange(len(number))
    return number[:index] + str(rng.randint(0, 9)) + number[index + 1 :]


def _tool_call(expression: str) -> str:
    call = json.dumps({"name": "calculate", "arguments": {"expression": expression}})
    return f"<tool_call>\n{call}\n</tool_call>"
