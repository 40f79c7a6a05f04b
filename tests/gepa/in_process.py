"""A task without a model: rewards that are a function of the call, and proposals that are one of what they are shown.

The system prompt has words; each of `WANTED` makes a reward more likely, each "harm" less. Rewards are 0 or 1: drawn
for each call, or (`noisy` False) the same each time, because it is examples that are hard or easy.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whet.gepa.config import GepaConfig
from whet.gepa.types import (
    BudgetSpent,
    Candidate,
    CandidateRecord,
    Phase,
    RolloutCall,
    Scored,
    SearchExample,
    Split,
    candidate_id,
)

WANTED = ("one", "two", "three")
SEED = {"system_prompt": "Answer."}
Chance = Callable[[Candidate], float]


def examples(split: Split, count: int) -> list[SearchExample]:
    return [SearchExample("task", split, number, number, {}) for number in range(count)]


def config(acceptance: str = "paired", **fields: Any) -> GepaConfig:
    return GepaConfig(
        name="task", env=({"id": "task"},), gepa={"acceptance": acceptance, **fields.pop("gepa", {})}, **fields
    )


def by_words(candidate: Candidate) -> float:
    words = " ".join(candidate.values()).split()
    return min(max(0.2 + 0.25 * len({*words} & {*WANTED}) - 0.2 * words.count("harm"), 0.0), 1.0)


class Rolled:
    """`Rollouts` that remembers what it was asked for."""

    def __init__(self, seed: int = 0, most: int = 400, chance: Chance = by_words, noisy: bool = True) -> None:
        self.seed, self.most, self.chance, self.noisy = seed, most, chance, noisy
        self.asked: list[tuple[Phase, RolloutCall]] = []
        self._samples: Counter[tuple[str, str]] = Counter()

    @property
    def left(self) -> int:
        return self.most - len(self.asked)

    def score(self, candidate: Candidate, examples: Sequence[SearchExample], phase: Phase) -> list[Scored]:
        if len(examples) > self.left:
            raise BudgetSpent(f"{len(examples)} calls do not fit into the {self.left} that are left")
        scored = []
        for example in examples:
            key = candidate_id(candidate), example.key
            call = RolloutCall(*key, self._samples[key])
            self._samples[key] += 1
            self.asked.append((phase, call))
            scored.append(Scored(call, self._reward(candidate, call), None, {"answer": example.number}))
        return scored

    def phases(self) -> Counter[str]:
        return Counter(phase for phase, _ in self.asked)

    def _reward(self, candidate: Candidate, call: RolloutCall) -> float:
        chance = self.chance(candidate)
        draw = random.Random(f"{self.seed}/{call.key if self.noisy else call.example}").random()
        return float(draw < chance)


class Proposals:
    """`Reflect`: adds a word, a good one or not. `said` are answers to give before that."""

    def __init__(
        self, seed: int = 0, *, said: Sequence[str | Exception | None] = (), always: str | None = None
    ) -> None:
        self.seen: list[tuple[dict[str, str], Mapping[str, Any]]] = []
        self._draw = random.Random(f"{seed}/proposals")
        self._said = list(said)
        self._always = always

    def __call__(
        self, candidate: Candidate, records: Mapping[str, Sequence[Mapping[str, Any]]], components: Sequence[str]
    ) -> dict[str, str]:
        self.seen.append((dict(candidate), records))
        said = self._said.pop(0) if self._said else self._always
        if isinstance(said, Exception):
            raise said
        if said == "":
            return {}
        word = self._draw.choice((*WANTED, "idle", "idle", "harm")) + f" #{self._draw.getrandbits(32)}"
        return {name: said if said is not None else f"{candidate[name]} {word}" for name in components}


class Told:
    """An observer."""

    def __init__(self) -> None:
        self.decided_on: list[CandidateRecord] = []
        self.proposals: list[tuple[int, str, list[str]]] = []

    def decided(self, record: CandidateRecord) -> None:
        self.decided_on.append(record)

    def proposed(self, number: int, parent: str, texts: Mapping[str, str], changed: Sequence[str]) -> None:
        self.proposals.append((number, parent, list(changed)))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the search tells {name}")
