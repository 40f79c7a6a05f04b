import re

import pytest

import whet
from my_env import load_environment, split_of


def task(**arguments: int) -> tuple[whet.Environment, int, int]:
    """The environment, and range's beginning and number of its first task."""
    env = load_environment(num_train=1, num_eval=1, **arguments)
    row = env.get_eval_dataset()[0]
    return env, range_of(row["question"])[0], int(row["answer"])


def range_of(question: str) -> tuple[int, int]:
    match = re.search(r"from (\d+) to (\d+)", question)
    assert match, question
    return int(match[1]), int(match[2])


def run(env: whet.Environment, guesses: list[str]) -> dict:
    """The result row of the first task, when a model guesses like this."""
    return env.evaluate_sync(whet.ScriptedClient(guesses), "scripted")["outputs"][0]


def games(rows: list[dict]) -> set[tuple[int, int]]:
    return {(range_of(row["question"])[0], int(row["answer"])) for row in rows}


def test_training_and_evaluation_share_no_game_whatever_the_seeds() -> None:
    train = games([row for seed in (0, 1) for row in load_environment(seed=seed).get_dataset()])
    held_out = games([row for seed in (0, 1) for row in load_environment(seed=seed).get_eval_dataset()])
    assert train.isdisjoint(held_out)
    assert {split_of(*game) for game in train} == {"train"}


def test_the_number_at_the_first_guess_earns_everything_and_ends_the_game() -> None:
    env, _, number = task()
    output = run(env, [str(number)])
    assert (output["reward"], output["stop_condition"]) == (1.0, "found")


@pytest.mark.parametrize("span", [3, 7, 8, 99])
def test_halving_the_range_earns_everything(span: int) -> None:
    env, low, number = task(span=span)
    guesses, high = [], low + span - 1
    while not guesses or guesses[-1] != number:
        guesses.append((low + high) // 2)
        low, high = (guesses[-1] + 1, high) if guesses[-1] < number else (low, guesses[-1] - 1)
    assert run(env, list(map(str, guesses)))["reward"] == 1.0


def test_a_guess_beyond_those_earns_less() -> None:
    env, low, number = task()
    wrong = low if number != low else low + 1
    rewards = [run(env, [str(wrong)] * misses + [str(number)])["reward"] for misses in range(5)]
    assert rewards == pytest.approx([1, 1, 1, 2 / 3, 1 / 3])


def test_the_player_is_told_where_the_number_is() -> None:
    env, _, number = task()
    replies = run(env, [str(number - 1), str(number + 1), "hm", str(number)])["completion"][1::2]
    assert [reply["content"] for reply in replies] == [
        "My number is higher.",
        "My number is lower.",
        "That was not a number. Answer with one number only.",
    ]


@pytest.mark.parametrize("text", ["", "none", " ".join(map(str, range(1000))), "-1"])
def test_a_message_that_is_not_one_guess_earns_nothing(text: str) -> None:
    env, *_ = task()
    output = run(env, [text] * 5)
    assert (output["reward"], output["stop_condition"]) == (0.0, "max_turns_reached")


def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="span from 3 to 99"):
        load_environment(span=2)
