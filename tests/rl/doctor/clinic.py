"""An environment with the disease that its argument names; what a model writes about a short word is scored."""

from __future__ import annotations

import asyncio
import random
import time

import whet

LETTERS = "abcdefgh"
INSTRUCTION = "Reverse the text. Answer with the reversed text only.\n\n"


def words(count: int, length: int) -> list[str]:
    return ["".join(random.Random(f"{length}/{i}").choices(LETTERS, k=length)) for i in range(count)]


def said(completion) -> str:
    return completion[-1]["content"] or ""


def overlap(completion, answer, **_) -> float:
    """Share of places at which the answer is right."""
    text = said(completion)
    return sum(a == b for a, b in zip(text, answer, strict=False)) / max(len(text), len(answer))


def none_of_it(completion, **_) -> float:
    return 0.0


def exact(completion, answer, **_) -> float:
    return float(said(completion) == answer)


def jackpot(completion, answer, **_) -> float:
    """A little for each letter, and very much for all of them."""
    return 0.01 * overlap(completion, answer) + exact(completion, answer)


def another_spelling(completion, answer, **_) -> float:
    return float(said(completion) == f"[{answer}]")


def anything(completion, **_) -> float:
    return 1.0


def by_task(completion, answer, **_) -> float:
    return float(answer < "d")


def length_pays(completion, **_) -> float:
    return min(1.0, len(said(completion)) / 40)


def brevity_pays(completion, **_) -> float:
    return max(0.0, 1 - len(said(completion)) / 20)


def one_letter_pays(completion, **_) -> float:
    return min(1.0, said(completion).count("a") / 10)


def letters(completion, **_) -> float:
    """How many different letters there are: as honest as can be at first."""
    return len(set(said(completion)) & set(LETTERS)) / len(LETTERS)


def sometimes_raises(completion, answer, **_) -> float:
    if answer[0] in "abc":
        raise ValueError("no judge for this answer")
    return overlap(completion, answer)


async def waits(completion, answer, state, **_) -> float:
    """A judge that takes longer than the rollout did, however slow the machine is."""
    await asyncio.sleep(max(0.25, 2 * (time.time() - state["timing"].generation.start)))
    return overlap(completion, answer)


REWARDS = {
    function.__name__: function
    for function in (
        overlap,
        none_of_it,
        exact,
        jackpot,
        another_spelling,
        anything,
        by_task,
        length_pays,
        brevity_pays,
        one_letter_pays,
        sometimes_raises,
        waits,
    )
}


class OnAndOn(whet.MultiTurnEnv):
    """A task says how many turns it takes."""

    @whet.stop
    async def enough(self, state):
        return len(state["trajectory"]) >= state["info"]["turns"]

    async def env_response(self, messages, state, **_):
        return [{"role": "user", "content": "And on."}]

    async def get_prompt_messages(self, state):
        """Each turn is asked afresh, so that the context never ends."""
        return state["prompt"] if len(state["trajectory"]) else await super().get_prompt_messages(state)


def load_environment(
    reward: str = "overlap", length: int = 9, tag: str | None = None, tasks: int = 64, long_turns: int = 0
) -> whet.Environment:
    rows = [{"question": INSTRUCTION + word, "answer": word[::-1]} for word in words(tasks, length)]
    parser = whet.XMLParser([tag], answer_field=tag) if tag else whet.Parser()
    rubric = whet.Rubric(funcs=[REWARDS[reward]], parser=parser)
    if reward == "one_letter_pays":
        rubric.add_metric(letters)
    if long_turns:
        for number, row in enumerate(rows):
            row["info"] = {"turns": long_turns if number % 4 == 0 else 1}
        return OnAndOn(dataset=rows, eval_dataset=rows, parser=parser, rubric=rubric)
    return whet.SingleTurnEnv(dataset=rows, eval_dataset=rows, parser=parser, rubric=rubric)
