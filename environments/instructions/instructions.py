"""Follow instructions about an answer's form, each checked by a few lines of Python: one turn.

The kinds of instructions are those of IFEval (Zhou et al., 2311.07911) that a program can judge without a model of the
language; texts, values and checks are this file's own, from a seed. A task has a topic and one to three instructions
that can be followed together: an answer that follows them all is made with each task, and a combination for which that
fails is drawn again. Whether a task belongs to training or to evaluation is decided by a hash of its prompt.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import whet

TOPICS = (
    *("the harbour at dawn", "a bicycle repair", "how bread is baked", "a long train journey", "the history of glass"),
    *("a garden in winter", "learning to swim", "the migration of cranes", "a lost umbrella", "the night sky"),
    *(
        "a chess tournament",
        "why rivers bend",
        "a small library",
        "keeping bees",
        "the first snow",
        "an old lighthouse",
    ),
)
PLACES = ("Lisbon", "Kyoto", "Oslo", "Lima", "Cairo", "Perth", "Quito", "Prague", "Dakar", "Tbilisi", "Hanoi", "Cork")
FILLER = ("It began early", "Nobody spoke for a while", "The light was soft", "We walked on", "There was time to think")
"""Sentences without commas, and without any of `WORDS` and `COMMON`."""
WORDS = ("copper", "lantern", "meadow", "signal", "violin", "harvest", "marble", "compass", "thunder", "orchard")
COMMON = ("very", "good", "many", "always", "people", "because", "really", "great")
PHRASES = ("That is all there is to say.", "Ask me again tomorrow.", "And so it went.", "The rest is silence.")
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


def words_of(text: str) -> list[str]:
    """Words in lower case; `well-known` and `it's` are one each."""
    return [word.lower() for word in _WORD.findall(text)]


@dataclass(frozen=True)
class Instruction(ABC):
    """One demand on an answer. The fields are its values; JSON in a task has them with the kind's name."""

    stage: ClassVar[int]
    """Where `amend` comes in the making of an answer: what is inside before what is around it."""

    @classmethod
    @abstractmethod
    def draw(cls, rng: random.Random) -> Instruction: ...

    @property
    @abstractmethod
    def text(self) -> str:
        """The sentence of the prompt."""

    @abstractmethod
    def check(self, answer: str) -> bool:
        """Whether `answer` follows it."""

    @abstractmethod
    def amend(self, answer: str) -> str:
        """`answer`, changed so that it follows this; another instruction may undo it."""


@dataclass(frozen=True)
class About(Instruction):
    """What every task begins with: a refusal, a placeholder or the prompt itself follow no task."""

    topic: str
    least: ClassVar[int] = 15
    stage = 0

    @classmethod
    def draw(cls, rng: random.Random) -> About:
        return cls(f"{rng.choice(TOPICS)} in {rng.choice(PLACES)}")

    @property
    def text(self) -> str:
        return f"Write at least {self.least} words about {self.topic} and nothing else, and name it."

    def check(self, answer: str) -> bool:
        said = answer.lower()
        named = self.topic.lower() in said and self.text.lower() not in said
        # Answers to many tasks in one are about none of them; a place more may be named in passing.
        return named and sum(place.lower() in said for place in PLACES) <= 2 and len(words_of(answer)) >= self.least

    def amend(self, answer: str) -> str:
        return f"{answer}This is about {self.topic}. {FILLER[0]}. {FILLER[1]}. {FILLER[2]}."


@dataclass(frozen=True)
class Keywords(Instruction):
    words: tuple[str, ...]
    stage = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Keywords:
        return cls(tuple(rng.sample(WORDS, rng.randint(1, 3))))

    @property
    def text(self) -> str:
        return f"Use each of these words: {', '.join(self.words)}."

    def check(self, answer: str) -> bool:
        return set(self.words) <= set(words_of(answer))

    def amend(self, answer: str) -> str:
        return f"{answer} These come to mind: {' and '.join(self.words)}."


@dataclass(frozen=True)
class KeywordCount(Instruction):
    word: str
    count: int
    stage = 1

    @classmethod
    def draw(cls, rng: random.Random) -> KeywordCount:
        return cls(rng.choice(WORDS), rng.randint(2, 5))

    @property
    def text(self) -> str:
        return f'Use the word "{self.word}" exactly {self.count} times.'

    def check(self, answer: str) -> bool:
        return words_of(answer).count(self.word) == self.count

    def amend(self, answer: str) -> str:
        missing = self.count - words_of(answer).count(self.word)
        return answer + "".join(f" Here is a {self.word}." for _ in range(missing))


@dataclass(frozen=True)
class Forbidden(Instruction):
    words: tuple[str, ...]
    stage = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Forbidden:
        return cls(tuple(rng.sample(COMMON, rng.randint(2, 4))))

    @property
    def text(self) -> str:
        return f"Do not use any of these words: {', '.join(self.words)}."

    def check(self, answer: str) -> bool:
        return bool(answer.strip()) and not set(self.words) & set(words_of(answer))

    def amend(self, answer: str) -> str:
        return answer


@dataclass(frozen=True)
class Words(Instruction):
    least: int
    most: int
    stage = 2

    @classmethod
    def draw(cls, rng: random.Random) -> Words:
        least = rng.choice((20, 40, 60, 80))
        return cls(least, least + rng.choice((15, 30)))

    @property
    def text(self) -> str:
        return f"Write between {self.least} and {self.most} words."

    def check(self, answer: str) -> bool:
        return self.least <= len(words_of(answer)) <= self.most

    def amend(self, answer: str) -> str:
        at = 0
        while len(words_of(answer)) < self.least:
            answer, at = f"{answer} {FILLER[at % len(FILLER)]}.", at + 1
        return answer


@dataclass(frozen=True)
class Paragraphs(Instruction):
    count: int
    stage = 3

    @classmethod
    def draw(cls, rng: random.Random) -> Paragraphs:
        return cls(rng.randint(2, 5))

    @property
    def text(self) -> str:
        return f"Write exactly {self.count} paragraphs, with an empty line between them."

    def check(self, answer: str) -> bool:
        return len([part for part in re.split(r"\n[^\S\n]*\n", answer) if part.strip()]) == self.count

    def amend(self, answer: str) -> str:
        return "\n\n".join([answer, *(f"{FILLER[at % len(FILLER)]}." for at in range(self.count - 1))])


@dataclass(frozen=True)
class Bullets(Instruction):
    count: int
    stage = 4

    @classmethod
    def draw(cls, rng: random.Random) -> Bullets:
        return cls(rng.randint(2, 6))

    @property
    def text(self) -> str:
        return f'Include exactly {self.count} bullet points: lines that begin with "- ".'

    def check(self, answer: str) -> bool:
        return sum(line.lstrip().startswith("- ") for line in answer.splitlines()) == self.count

    def amend(self, answer: str) -> str:
        return "\n".join([answer, *(f"- {FILLER[at % len(FILLER)]}" for at in range(self.count))])


@dataclass(frozen=True)
class Placeholders(Instruction):
    count: int
    stage = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Placeholders:
        return cls(rng.randint(2, 4))

    @property
    def text(self) -> str:
        return f"Include at least {self.count} placeholders in square brackets, such as [address]."

    def check(self, answer: str) -> bool:
        return len(re.findall(r"\[[^\[\]\n]+\]", answer)) >= self.count

    def amend(self, answer: str) -> str:
        return answer + " Contact " + " or ".join(f"[name {at + 1}]" for at in range(self.count)) + "."


@dataclass(frozen=True)
class FirstWord(Instruction):
    word: str
    stage = 5

    @classmethod
    def draw(cls, rng: random.Random) -> FirstWord:
        return cls(rng.choice(WORDS))

    @property
    def text(self) -> str:
        return f'Let the first word be "{self.word}".'

    def check(self, answer: str) -> bool:
        return words_of(answer)[:1] == [self.word]

    def amend(self, answer: str) -> str:
        return f"{self.word.capitalize()} first. {answer}"


@dataclass(frozen=True)
class Title(Instruction):
    stage = 6

    @classmethod
    def draw(cls, rng: random.Random) -> Title:
        return cls()

    @property
    def text(self) -> str:
        return "Begin with a title on a line of its own, in double angular brackets, such as <<a title>>."

    def check(self, answer: str) -> bool:
        lines = answer.strip().splitlines()
        return len(lines) > 1 and re.fullmatch(r"<<[^<>\n]*[^<>\s][^<>\n]*>>", lines[0].strip()) is not None

    def amend(self, answer: str) -> str:
        return f"<<A few words>>\n{answer}"


@dataclass(frozen=True)
class Postscript(Instruction):
    stage = 7

    @classmethod
    def draw(cls, rng: random.Random) -> Postscript:
        return cls()

    @property
    def text(self) -> str:
        return 'Add a postscript: a last line that begins with "P.S.".'

    def check(self, answer: str) -> bool:
        lines = answer.strip().splitlines()
        return len(lines) > 1 and re.match(r"(?i)\s*p\.s\.\s*\S", lines[-1]) is not None

    def amend(self, answer: str) -> str:
        return f"{answer}\nP.S. Write soon."


@dataclass(frozen=True)
class EndPhrase(Instruction):
    phrase: str
    stage = 8

    @classmethod
    def draw(cls, rng: random.Random) -> EndPhrase:
        return cls(rng.choice(PHRASES))

    @property
    def text(self) -> str:
        return f'End with the sentence "{self.phrase}", and nothing after it.'

    def check(self, answer: str) -> bool:
        return answer.rstrip().lower().endswith(self.phrase.lower())

    def amend(self, answer: str) -> str:
        return f"{answer} {self.phrase}"


@dataclass(frozen=True)
class Case(Instruction):
    upper: bool
    stage = 9

    @classmethod
    def draw(cls, rng: random.Random) -> Case:
        return cls(rng.random() < 0.5)

    @property
    def text(self) -> str:
        return f"Write only in {'capital' if self.upper else 'lower-case'} letters."

    def check(self, answer: str) -> bool:
        return answer.isupper() if self.upper else answer.islower()

    def amend(self, answer: str) -> str:
        return answer.upper() if self.upper else answer.lower()


@dataclass(frozen=True)
class NoCommas(Instruction):
    stage = 9

    @classmethod
    def draw(cls, rng: random.Random) -> NoCommas:
        return cls()

    @property
    def text(self) -> str:
        return "Do not use any commas."

    def check(self, answer: str) -> bool:
        return bool(answer.strip()) and not set(answer) & set(",\uff0c\u3001")

    def amend(self, answer: str) -> str:
        return answer.replace(",", "")


@dataclass(frozen=True)
class Quoted(Instruction):
    stage = 10

    @classmethod
    def draw(cls, rng: random.Random) -> Quoted:
        return cls()

    @property
    def text(self) -> str:
        return "Put the whole answer in double quotation marks."

    def check(self, answer: str) -> bool:
        inside = answer.strip()
        return len(inside) > 2 and inside[0] == inside[-1] == '"'

    def amend(self, answer: str) -> str:
        return f'"{answer}"'


@dataclass(frozen=True)
class JsonObject(Instruction):
    keys: tuple[str, ...]
    stage = 10

    @classmethod
    def draw(cls, rng: random.Random) -> JsonObject:
        return cls(tuple(rng.sample(("summary", "details", "mood", "place"), rng.randint(1, 3))))

    @property
    def text(self) -> str:
        return f"Answer with a JSON object alone, whose keys are {', '.join(self.keys)} and whose values are texts."

    def check(self, answer: str) -> bool:
        try:
            value = json.loads(answer)
        except (ValueError, RecursionError):
            return False
        texts = isinstance(value, dict) and all(isinstance(one, str) and one.strip() for one in value.values())
        return texts and sorted(value) == sorted(self.keys)

    def amend(self, answer: str) -> str:
        return json.dumps(dict.fromkeys(self.keys, "none") | {self.keys[0]: answer}, ensure_ascii=False)


KINDS: dict[str, type[Instruction]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in Instruction.__subclasses__()
}


DRAWN = tuple(name for name in KINDS if name != "about")


def as_data(instruction: Instruction) -> dict[str, Any]:
    kind = next(name for name, kind in KINDS.items() if type(instruction) is kind)
    return {"kind": kind, **json.loads(json.dumps(vars(instruction)))}


def from_data(data: dict[str, Any]) -> Instruction:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return KINDS[values.pop("kind")](**values)


def answer_to(instructions: Sequence[Instruction]) -> str:
    """An answer that was made to follow all of them; whether it does is for their checks to say."""
    answer = ""
    for instruction in sorted(instructions, key=lambda one: one.stage):
        answer = instruction.amend(answer)
    return answer


def make_task(rng: random.Random, kinds: Sequence[str], most: int) -> dict[str, Any]:
    """One task, with an answer that follows all of its instructions."""
    while True:
        names = rng.sample(list(kinds), rng.randint(1, min(most, len(kinds))))
        instructions = [KINDS[name].draw(rng) for name in ("about", *names)]
        answer = answer_to(instructions)
        if all(instruction.check(answer) for instruction in instructions):
            break
    prompt = " ".join(instruction.text for instruction in instructions)
    return {"question": prompt, "answer": answer, "info": {"instructions": [as_data(one) for one in instructions]}}


def split_of(prompt: str) -> Literal["train", "eval"]:
    """A quarter of all prompts is for evaluation."""
    return "eval" if zlib.crc32(prompt.encode()) % 4 == 0 else "train"


def make_tasks(
    split: Literal["train", "eval"], size: int, seed: int, kinds: Sequence[str], most: int
) -> list[dict[str, Any]]:
    """`size` different tasks of one split, or fewer where there are no more of them."""
    rng = random.Random(f"{split} {seed}")
    tasks: dict[str, dict[str, Any]] = {}
    for _ in range(20 * size):
        if len(tasks) == size:
            break
        task = make_task(rng, kinds, most)
        if split_of(task["question"]) == split:
            tasks.setdefault(task["question"], task)
    return list(tasks.values())


def followed(completion: whet.Messages, info: dict[str, Any]) -> list[bool]:
    answer = completion[-1].get("content") or "" if completion else ""
    return [from_data(one).check(str(answer)) for one in info["instructions"]]


def all_followed(completion: whet.Messages, info: dict[str, Any]) -> float:
    """1 if the answer follows every instruction."""
    return float(all(followed(completion, info)))


def share_followed(completion: whet.Messages, info: dict[str, Any]) -> float:
    """The share of the instructions that the answer follows."""
    each = followed(completion, info)
    return sum(each) / len(each)


def load_environment(
    num_train: int = 1000,
    num_eval: int = 256,
    seed: int = 0,
    kinds: Sequence[str] | None = None,
    most: int = 3,
    partial: bool = False,
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Draws the tasks.
        kinds: Kinds of instructions, by name; all if absent.
        most: Most instructions of a task, besides its topic.
        partial: Reward the share of the instructions that are followed, in place of 1 for all of them.
    """
    unknown = sorted(set(kinds or ()) - set(DRAWN))
    if unknown:
        raise ValueError(f"kinds has {', '.join(unknown)}; there are {', '.join(DRAWN)}")
    if most < 1 or (kinds is not None and not kinds):
        raise ValueError("a task needs at least one instruction: raise `most`, and name at least one of `kinds`")
    chosen = list(dict.fromkeys(kinds or DRAWN))
    rubric = whet.Rubric(funcs=[share_followed if partial else all_followed])
    rubric.add_metric(all_followed if partial else share_followed)
    return whet.SingleTurnEnv(
        dataset=lambda: make_tasks("train", num_train, seed, chosen, most),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, chosen, most),
        rubric=rubric,
    )
