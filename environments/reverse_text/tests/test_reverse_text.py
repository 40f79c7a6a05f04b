import pytest

import whet
from reverse_text import load_environment, split_of


def text_of(row: dict) -> str:
    return row["question"].split("\n\n")[1]


def run(answers: list[str], **args: object) -> dict:
    env = load_environment(num_train=1, num_eval=1, **args)
    return env.evaluate_sync(whet.ScriptedClient(answers), "scripted")["outputs"][0]


def right_answer() -> str:
    return load_environment(num_eval=1).get_eval_dataset()[0]["answer"]


def test_training_and_evaluation_share_no_text_whatever_the_seeds() -> None:
    train = {text_of(row) for seed in (0, 1) for row in load_environment(seed=seed).get_dataset()}
    held_out = {text_of(row) for seed in (0, 1) for row in load_environment(seed=seed).get_eval_dataset()}
    assert train.isdisjoint(held_out)
    assert {split_of(text) for text in train} == {"train"}


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others() -> None:
    first, again, other = (load_environment(seed=seed).get_dataset().to_list() for seed in (3, 3, 4))
    assert first == again != other


def test_sizes_and_lengths_are_what_was_asked_for() -> None:
    env = load_environment(num_train=50, num_eval=20, min_length=5, max_length=6)
    rows = [*env.get_dataset(), *env.get_eval_dataset()]
    assert (len(env.get_dataset()), len(env.get_eval_dataset())) == (50, 20)
    assert {len(text_of(row)) for row in rows} == {5, 6}


def test_the_reversed_text_earns_everything() -> None:
    output = run([right_answer()])
    assert output["reward"] == 1.0
    assert output["metrics"]["exact_match"] == 1.0


def test_more_right_letters_earn_more() -> None:
    right = right_answer()
    rewards = [run([right[:kept] + "?" * (len(right) - kept)])["reward"] for kept in range(len(right) + 1)]
    assert rewards == sorted(rewards)
    assert rewards[0] == 0.0


def test_a_nearly_right_answer_is_no_exact_match() -> None:
    assert run([right_answer() + "x"])["metrics"]["exact_match"] == 0.0


def test_an_empty_answer_earns_nothing() -> None:
    assert run([""])["reward"] == 0.0


def test_lengths_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="min_length <= max_length"):
        load_environment(min_length=6, max_length=5)
