"""Simulated tasks whose best prompt is known, for `prompts.py`. In process, and a function of their seeds alone.

A task has a few hidden instructions; every example needs some of them. A prompt is lines of text, and the chance of a
reward depends on how many of the instructions an example needs are there, and on how many harmful lines there are.
Rewards are noisy: equal prompts have unequal means.

The reflection model sees what one would see: the rollouts of a minibatch. A failed one shows, not always rightly, an
instruction it lacked. With some chance the model acts on such a hint; otherwise it adds a line that does nothing or
does harm, or leaves a line out. It never writes the same line twice, as models do not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.gepa.types import BudgetSpent, Candidate, Phase, RolloutCall, Scored, SearchExample, Split, candidate_id

SEED = {"system_prompt": "Answer the question."}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a task is like."""

    instructions: int = 3  # hidden
    needed: int = 2  # of them by each example
    low: float = 0.2  # chance of a reward with none of what is needed
    high: float = 0.9  # ... and with all of it
    spread: float = 0.1  # by how much examples are easier or harder than that
    harm: float = 0.2  # what each harmful line takes away
    insight: float = 0.5  # of the reflection model: how often it acts on a hint
    honest: float = 0.8  # how often a hint is right
    only_idle: bool = False  # no proposal changes anything
    trap: float = 0.0  # what a tempting line gives; with it, what is needed counts half
    continuous: bool = False  # rewards between 0 and 1 instead of 0 or 1

    @classmethod
    def drawn(cls, seed: int) -> Settings:
        """Of one of many tasks that differ."""
        draw = random.Random(f"settings/{seed}")
        instructions = draw.choice((2, 3))
        return cls(
            instructions=instructions,
            needed=draw.randint(1, instructions),
            low=draw.uniform(0.05, 0.4),
            high=draw.uniform(0.75, 0.98),
            insight=draw.uniform(0.3, 0.8),
            honest=draw.uniform(0.6, 1.0),
            continuous=draw.random() < 0.25,
        )


class Task:
    """One task: chances of rewards, and the rewards themselves."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self._needs: dict[str, tuple[frozenset[int], float]] = {}

    def examples(self, split: Split, count: int) -> list[SearchExample]:
        return [SearchExample("task", split, number, number, {}) for number in range(count)]

    def chance(self, texts: Candidate, example: str) -> float:
        """Of a reward for one call."""
        settings = self.settings
        needs, ease = self._needs.get(example) or self._draw_needs(example)
        has, harmful, tempted = read(texts)
        met = len(needs & has) / len(needs) * (0.5 if tempted else 1.0)
        base = settings.low + (settings.high - settings.low) * met + ease
        base += settings.trap * tempted - settings.harm * harmful
        return min(max(base, 0.0), 1.0)

    def optimal(self, texts: Candidate) -> bool:
        has, harmful, tempted = read(texts)
        return len(has) == self.settings.instructions and not harmful and not tempted

    def call(self, texts: Candidate, call: RolloutCall) -> Scored:
        luck = random.Random(f"{self.seed}/{call.key}")
        chance = self.chance(texts, call.example)
        if self.settings.continuous:
            reward = min(max(luck.gauss(chance, 0.25), 0.0), 1.0)
        else:
            reward = float(luck.random() < chance)
        needs, _ = self._needs[call.example]
        lacks = sorted(needs - read(texts)[0])
        failed = luck.random() >= reward
        hint = None
        if failed:
            right = lacks and luck.random() < self.settings.honest
            hint = luck.choice(lacks) if right else luck.randrange(self.settings.instructions)
        said = "I am not sure." if hint is None else f"Nothing is known about {hint}."
        row = {"prompt": [], "completion": [{"role": "assistant", "content": said}], "reward": reward, "metrics": {}}
        return Scored(call, reward, None, row)

    def _draw_needs(self, example: str) -> tuple[frozenset[int], float]:
        draw = random.Random(f"{self.seed}/{example}")
        settings = self.settings
        needs = frozenset(draw.sample(range(settings.instructions), min(settings.needed, settings.instructions)))
        self._needs[example] = needs, draw.uniform(-settings.spread, settings.spread)
        return self._needs[example]


class Proposals:
    """The reflection model."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._made = 0

    def __call__(
        self, candidate: Candidate, records: Mapping[str, Sequence[Mapping[str, Any]]], components: Sequence[str]
    ) -> dict[str, str]:
        self._made += 1
        draw = random.Random(f"{self._task.seed}/proposal/{self._made}")
        return {name: self._change(candidate[name], records[name], draw) for name in components}

    def _change(self, text: str, records: Sequence[Mapping[str, Any]], draw: random.Random) -> str:
        wording = draw.getrandbits(32)
        hints = [hint for record in records for hint in hints_of(record)]
        if draw.random() < self._task.settings.insight and hints:
            return f"{text}\nneed {draw.choice(hints)} ({wording})"
        lines = text.split("\n")
        if self._task.settings.only_idle:
            return f"{text}\nidle ({wording})"
        kind = draw.choice(("idle", "tempt" if self._task.settings.trap else "idle", "harm", "drop"))
        if kind == "drop" and len(lines) > 1:
            lines.remove(draw.choice(lines[1:]))
            return "\n".join([*lines, f"idle ({wording})"])
        return f"{text}\n{kind} ({wording})"


class Calls:
    """`Rollouts` of a task, within a budget. Counts every call."""

    def __init__(self, task: Task, most: int | None) -> None:
        self.begun = 0
        self._task = task
        self._most = most
        self._samples: Counter[tuple[str, str]] = Counter()

    @property
    def left(self) -> int:
        assert self._most is not None
        return self._most - self.begun

    def score(self, candidate: Candidate, examples: Sequence[SearchExample], phase: Phase) -> list[Scored]:
        if self._most is not None and len(examples) > self.left:
            raise BudgetSpent(f"{len(examples)} calls do not fit into the {self.left} that are left")
        scored = []
        for example in examples:
            key = (candidate_id(candidate), example.key)
            scored.append(self._task.call(candidate, RolloutCall(*key, self._samples[key])))
            self._samples[key] += 1
            self.begun += 1
        return scored


def read(texts: Candidate) -> tuple[frozenset[int], int, bool]:
    """The instructions that a prompt has, how many harmful lines, and whether it has a tempting one."""
    lines = [line.split(" ") for line in "\n".join(texts.values()).split("\n")]
    first = Counter(words[0] for words in lines)
    return frozenset(int(words[1]) for words in lines if words[0] == "need"), first["harm"], first["tempt"] > 0


def hints_of(record: Mapping[str, Any]) -> list[int]:
    return [int(m["text"].split()[-1].rstrip(".")) for m in record["completion"] if m["text"].startswith("Nothing")]
