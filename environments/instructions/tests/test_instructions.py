"""Prompt, check and answer of each instruction agree."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

import whet
from instructions import (
    COMMON,
    DRAWN,
    FILLER,
    KINDS,
    PLACES,
    WORDS,
    About,
    answer_to,
    as_data,
    from_data,
    load_environment,
    make_task,
    split_of,
    words_of,
)

SEEDS = range(40)

SPOILED: dict[str, Callable[[Any, str], list[str]]] = {
    "about": lambda one, text: [
        f"{one.text} {text}",
        text.replace(one.topic, "it"),
        f"This is {one.topic}.",
        text + " ".join(PLACES),
    ],
    "keywords": lambda one, text: [text.replace(one.words[0], "x"), ""],
    "keyword_count": lambda one, text: [f"{text} {one.word}", text.replace(one.word, "x", 1)],
    "forbidden": lambda one, text: [f"{text} {one.words[-1].upper()}!", "  "],
    "words": lambda one, text: [text + " x" * one.most, " ".join(text.split()[: one.least - 1])],
    "paragraphs": lambda one, text: [f"{text}\n \nMore.", text.replace("\n\n", "\n", 1)],
    "bullets": lambda one, text: [f"{text}\n- more", text.replace("- ", "", 1)],
    "placeholders": lambda one, text: [text.replace("[", "(", 1), ""],
    "first_word": lambda one, text: [f"A {text}", text[1:]],
    "title": lambda one, text: [text.replace("<<", "<", 1), "<<only a title>>", text.replace("A few words", " ")],
    "postscript": lambda one, text: [f"{text}\nMore.", text.replace("P.S.", "PS")],
    "end_phrase": lambda one, text: [f"{text} More.", text[:-2]],
    "case": lambda one, text: [text.swapcase(), f"{text} {'x' if one.upper else 'X'}", "123"],
    "no_commas": lambda one, text: [f"{text}, more", ""],
    "quoted": lambda one, text: [text[1:], text[:-1], '""'],
    "json_object": lambda one, text: [
        f"Here: {text}",
        text[:-1],
        '{"other": "x"}',
        "[" * 100_000,
        text.replace('"', "'"),
    ],
}
READ: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
    "about": (r"Write at least 15 words about (.+) and nothing else, and name it\.", lambda topic: {"topic": topic}),
    "keywords": (r"Use each of these words: (.+)\.", lambda words: {"words": words.split(", ")}),
    "keyword_count": (r'Use the word "(\w+)" exactly (\d+) times\.', lambda word, n: {"word": word, "count": int(n)}),
    "forbidden": (r"Do not use any of these words: (.+)\.", lambda words: {"words": words.split(", ")}),
    "words": (r"Write between (\d+) and (\d+) words\.", lambda low, high: {"least": int(low), "most": int(high)}),
    "paragraphs": (r"Write exactly (\d+) paragraphs, .+", lambda n: {"count": int(n)}),
    "bullets": (r"Include exactly (\d+) bullet points: .+", lambda n: {"count": int(n)}),
    "placeholders": (r"Include at least (\d+) placeholders .+", lambda n: {"count": int(n)}),
    "first_word": (r'Let the first word be "(\w+)"\.', lambda word: {"word": word}),
    "title": (r"Begin with a title .+", dict),
    "postscript": (r"Add a postscript: .+", dict),
    "end_phrase": (r'End with the sentence "(.+)", and .+', lambda phrase: {"phrase": phrase}),
    "case": (r"Write only in (capital|lower-case) letters\.", lambda word: {"upper": word == "capital"}),
    "no_commas": (r"Do not use any commas\.", dict),
    "quoted": (r"Put the whole answer in double quotation marks\.", dict),
    "json_object": (
        r"Answer with a JSON object alone, whose keys are (.+) and .+",
        lambda keys: {"keys": keys.split(", ")},
    ),
}
"""By kind: the sentence, and what it says, read independently of the code that wrote it."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_that_is_made_passes_and_spoiled_ones_do_not(kind: str) -> None:
    for seed in SEEDS:
        instruction = KINDS[kind].draw(random.Random(seed))
        answer = answer_to([About("the night sky in Oslo"), instruction][kind == "about" :])
        assert instruction.check(answer), (instruction, answer)
        for spoiled in SPOILED[kind](instruction, answer):
            assert not instruction.check(spoiled), (instruction, spoiled)


@pytest.mark.parametrize("kind", KINDS)
def test_the_prompt_demands_what_is_checked(kind: str) -> None:
    pattern, read = READ[kind]
    for seed in SEEDS:
        instruction = KINDS[kind].draw(random.Random(seed))
        match = re.fullmatch(pattern, instruction.text)
        assert match is not None
        assert {"kind": kind, **read(*match.groups())} == as_data(instruction)
        assert from_data(as_data(instruction)) == instruction


def test_filler_breaks_no_instruction() -> None:
    assert not set(words_of(" ".join(FILLER))) & {*WORDS, *COMMON}
    assert "," not in "".join(FILLER)


def outputs(answers: list[str], **arguments: Any) -> list[dict[str, Any]]:
    """What each task's rollout comes to, with an answer for each."""
    env = load_environment(num_train=1, num_eval=len(answers), **arguments)
    by_prompt = {row["question"]: answer for row, answer in zip(env.get_eval_dataset(), answers, strict=True)}
    client = whet.ScriptedClient(lambda prompt: by_prompt[prompt[-1].content])
    return env.evaluate_sync(client, "scripted")["outputs"]


def test_every_task_gives_its_own_answer_full_reward_and_no_other_tasks_answer_is_worth_as_much() -> None:
    rows = load_environment(num_eval=300).get_eval_dataset()
    own = outputs([row["answer"] for row in rows])
    assert {output["reward"] for output in own} == {1.0}
    others = outputs([*(row["answer"] for row in rows[1:]), rows[0]["answer"]])
    assert sum(output["reward"] for output in others) < 0.2 * len(rows)
    assert {one["kind"] for row in rows for one in row["info"]["instructions"]} == set(KINDS)
    assert {len(row["info"]["instructions"]) for row in rows} == {2, 3, 4}


def test_training_and_evaluation_share_no_prompt() -> None:
    env = load_environment(num_train=400, num_eval=100, seed=3)
    train, held_out = ({row["question"] for row in rows} for rows in (env.get_dataset(), env.get_eval_dataset()))
    assert (len(train), len(held_out)) == (400, 100)
    assert {split_of(prompt) for prompt in train} == {"train"}
    assert {split_of(prompt) for prompt in held_out} == {"eval"}


def test_kinds_and_their_number_are_arguments() -> None:
    rows = load_environment(kinds=["no_commas", "case"], most=2, num_eval=20).get_eval_dataset()
    assert {one["kind"] for row in rows for one in row["info"]["instructions"]} == {"about", "no_commas", "case"}
    with pytest.raises(ValueError, match="kinds has rhymes; there are keywords"):
        load_environment(kinds=["rhymes"])
    with pytest.raises(ValueError, match="at least one instruction"):
        load_environment(most=0)


def test_the_share_is_a_metric_or_the_reward() -> None:
    (row,) = load_environment(num_eval=1, kinds=["bullets", "postscript", "title"], seed=1).get_eval_dataset()
    assert len(row["info"]["instructions"]) > 2
    [whole] = outputs([""], kinds=["bullets", "postscript", "title"], seed=1)
    assert (whole["reward"], whole["metrics"]["share_followed"]) == (0.0, 0.0)
    half = row["answer"].replace("- ", "", 1).replace("<<", "", 1)
    [partly] = outputs([half], kinds=["bullets", "postscript", "title"], seed=1, partial=True)
    assert partly["reward"] == partly["metrics"]["share_followed"]
    assert 0 < partly["reward"] < 1
    assert partly["metrics"]["all_followed"] == 0.0


def test_tasks_repeat_with_the_seed() -> None:
    first, again = (make_task(random.Random(5), DRAWN, 3) for _ in range(2))
    assert first == again
