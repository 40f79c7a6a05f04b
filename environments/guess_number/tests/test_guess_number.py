import pytest

import whet
from guess_number import HIGHER, LOWER, NOT_A_NUMBER, load_environment


def halve(prompt: list[dict]) -> str:
    """A player that halves the given range."""
    words = prompt[0]["content"].replace(".", " ").split()
    low, high = int(words[words.index("from") + 1]), int(words[words.index("to") + 1])
    for guess, reply in zip(prompt[1::2], prompt[2::2], strict=True):
        if reply["content"] == HIGHER:
            low = int(guess["content"]) + 1
        else:
            high = int(guess["content"]) - 1
    return str((low + high) // 2)


def task(**args: int) -> tuple[whet.Environment, int, int]:
    """An environment with one task, its number, and a number that is wrong."""
    env = load_environment(num_train=1, num_eval=1, **args)
    row = env.get_eval_dataset()[0]
    return env, int(row["answer"]), row["info"]["high"] + 1


def run(env: whet.Environment, guesses: list[object]) -> dict:
    return env.evaluate_sync(whet.ScriptedClient([str(guess) for guess in guesses]), "scripted")["outputs"][0]


def test_training_and_evaluation_share_no_task_whatever_the_seeds() -> None:
    def tasks(seed: int, split: str) -> set[tuple[int, str]]:
        env = load_environment(seed=seed)
        rows = env.get_dataset() if split == "train" else env.get_eval_dataset()
        return {(row["info"]["low"], row["answer"]) for row in rows}

    assert (tasks(0, "train") | tasks(1, "train")).isdisjoint(tasks(0, "eval") | tasks(1, "eval"))


def test_there_are_256_different_tasks_to_evaluate_on() -> None:
    rows = load_environment().get_eval_dataset()
    assert len({(row["info"]["low"], row["answer"]) for row in rows}) == 256


@pytest.mark.parametrize("span", [2, 7, 15, 31])
def test_halving_the_range_always_earns_everything(span: int) -> None:
    env = load_environment(num_eval=64, span=span, max_low=60)
    outputs = env.evaluate_sync(whet.ScriptedClient(halve), "scripted")["outputs"]
    assert {output["reward"] for output in outputs} == {1.0}


def test_every_guess_beyond_costs_and_the_last_one_still_earns() -> None:
    env, number, wrong = task()
    rewards = [run(env, [wrong] * misses + [number])["reward"] for misses in range(5)]
    assert rewards == pytest.approx([1, 1, 1, 2 / 3, 1 / 3])


def test_a_number_that_is_not_found_earns_nothing() -> None:
    env, _, wrong = task()
    output = run(env, [wrong] * 5)
    assert (output["reward"], output["metrics"]["exact_match"]) == (0.0, 0.0)
    assert output["metrics"]["guesses_used"] == 5
    assert output["stop_condition"] == "max_turns_reached"


def test_the_game_ends_when_the_number_is_found() -> None:
    env, number, _ = task()
    output = run(env, [number, "never asked for"])
    assert output["stop_condition"] == "found"
    assert output["metrics"]["guesses_used"] == 1


def test_the_player_is_told_where_the_number_lies() -> None:
    env, number, _ = task()
    replies = [message["content"] for message in run(env, [number - 1, number + 1, "hm", number])["completion"][1::2]]
    assert replies == [HIGHER, LOWER, NOT_A_NUMBER]


def test_a_sentence_with_the_number_in_it_is_not_a_guess() -> None:
    env, number, _ = task(extra_guesses=0)
    assert run(env, [f"It is {number}"] * 3)["reward"] == 0.0


def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="span >= 2"):
        load_environment(span=1)
