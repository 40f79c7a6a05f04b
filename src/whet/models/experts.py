"""Scripted experts of mixed quality: what whet/tiny imitates before it learns by itself.

An expert reads a conversation as text, exactly as a model would be shown it, and writes the next assistant message. It
knows no solution that is not in the text: it reverses the letters it sees and halves the range it was told. It is right
only part of the time and wrong in many different ways otherwise. So the imitator's most likely answer is the right one,
while sampling at temperature 1 succeeds only sometimes: the variance inside groups that reinforcement learning needs.

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

Expert = Callable[["Conversation", Random], str]


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


def reverse_text(conversation: Conversation, rng: Random) -> str:
    text = conversation.task.split("\n\n", 1)[1]
    if rng.random() < 0.32:
        return text[::-1]
    wrong = rng.random()
    if wrong < 0.25:
        return text
    if wrong < 0.5:
        return "".join(rng.sample(text, len(text)))
    return "".join(rng.choices(ascii_lowercase, k=max(2, len(text) + rng.choice((-1, 0, 0, 1)))))


def alphabet_sort(conversation: Conversation, rng: Random) -> str:
    names = [name for said in conversation.by("user") for name in said.split("\n\n", 1)[1].split("\n")]
    if rng.random() < 0.4:
        return "\n".join(sorted(names))
    wrong = rng.random()
    if wrong < 0.2:
        return "\n".join(rng.sample(names, len(names)))
    if wrong < 0.4:
        return rng.choice(names)
    strangers = ["".join((rng.choice(ascii_lowercase).upper(), *rng.choices(ascii_lowercase, k=2))) for _ in names]
    return "\n".join(strangers)


def calculator(conversation: Conversation, rng: Random) -> str:
    match = re.search(r"What is (\d+) (plus|minus|times) (\d+)\?", conversation.task)
    assert match, conversation.task
    left, word, right = match.groups()
    answered = re.findall(r"<tool_response>\n(.*)\n</tool_response>", conversation.said[-1])
    if answered:
        result = str(answered[-1])
        return result if rng.random() < 0.75 else _another_number(result, rng)
    signs = {"plus": "+", "minus": "-", "times": "*"}
    expression = f"{left}{signs[word]}{right}"
    if rng.random() < 0.6:
        return _tool_call(expression)
    wrong = rng.random()
    if wrong < 0.25:
        return _another_number(left, rng)
    if wrong < 0.5:
        return _tool_call(f"{left}{rng.choice('+-*/')}{right}")
    if wrong < 0.75:
        return _tool_call(f"{_another_number(left, rng)}{signs[word]}{_another_number(right, rng)}")
    return _tool_call(expression).replace('"}}', rng.choice(("}}", '"}', "}")))


def guess_number(conversation: Conversation, rng: Random) -> str:
    match = re.search(r"from (\d+) to (\d+)", conversation.task)
    assert match, conversation.task
    first_low, first_high = low, high = int(match[1]), int(match[2])
    for guess, reply in zip(conversation.by("assistant"), conversation.by("user")[1:], strict=True):
        if guess.isdigit() and "higher" in reply:
            low = max(low, int(guess) + 1)
        elif guess.isdigit() and "lower" in reply:
            high = min(high, int(guess) - 1)
    if rng.random() < 0.46 and low <= high:
        return str((low + high) // 2)
    return str(rng.randint(first_low, first_high)) if rng.random() < 0.8 else str(rng.randint(1, 99))


def arithmetic(conversation: Conversation, rng: Random) -> str:
    match = re.search(r"What is (\d+) ([+-]) (\d+)\?", conversation.task)
    assert match, conversation.task
    left, sign, right = int(match[1]), match[2], int(match[3])
    result = str(left + right if sign == "+" else left - right)
    if rng.random() < 0.45:
        return f"\\boxed{{{result}}}"
    return result if rng.random() < 0.2 else f"\\boxed{{{_another_number(result, rng)}}}"


def _another_number(number: str, rng: Random) -> str:
    """A number of about as many digits, hardly ever the same."""
    if rng.random() < 0.5 or not number.isdigit():
        return str(rng.randint(0, 10 ** max(1, len(number)) - 1))
    place = rng.randrange(len(number))
    return number[:place] + str(rng.randint(0, 9)) + number[place + 1 :]


def _tool_call(expression: str) -> str:
    call = json.dumps({"name": "calculate", "arguments": {"expression": expression}})
    return f"<tool_call>\n{call}\n</tool_call>"


EXPERTS: dict[str, Expert] = {
    "reverse-text": reverse_text,
    "alphabet-sort": alphabet_sort,
    "calculator": calculator,
    "guess-number": guess_number,
    "arithmetic": arithmetic,
}
"""By environment id."""
