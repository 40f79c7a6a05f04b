import pytest

import whet
from my_env import load_environment, split_of


def load(**settings: int) -> whet.Environment:
    return load_environment(whet.EnvConfig({"taskset": settings}))


def run(answer: str) -> dict:
    """The result row of the first task, when a model answers like this."""
    return load(num_eval=1, seed=1).evaluate_sync(whet.ScriptedClient([answer]), "scripted")["outputs"][0]


def right_answer() -> list[str]:
    return load(num_eval=1, seed=1).get_eval_dataset()[0]["answer"].split("\n")


def test_training_and_evaluation_share_no_names_whatever_the_seeds() -> None:
    train = {row["answer"] for seed in (0, 1) for row in load(seed=seed).get_dataset()}
    held_out = {row["answer"] for seed in (0, 1) for row in load(seed=seed).get_eval_dataset()}
    assert train.isdisjoint(held_out)
    assert {split_of(answer.split("\n")) for answer in train} == {"train"}


def test_the_answers_are_the_names_of_the_question_in_order() -> None:
    for row in load(num_train=50).get_dataset():
        assert row["answer"].split("\n") == sorted(row["prompt"][-1]["content"].split("\n\n")[1].split("\n"))


def test_the_right_list_earns_everything() -> None:
    output = run("\n" + " \n".join(right_answer()))
    assert (output["reward"], output["metrics"]["exact_match"]) == (1.0, 1.0)


def test_more_names_in_place_earn_more() -> None:
    right = right_answer()
    rewards = [run("\n".join(right[:kept] + ["?"] * (len(right) - kept)))["reward"] for kept in range(len(right) + 1)]
    assert rewards == sorted(set(rewards))
    assert (rewards[0], rewards[-1]) == (0.0, 1.0)


@pytest.mark.parametrize("answer", ["", "I do not know.", "Abe\n" * 999])
def test_anything_else_earns_next_to_nothing(answer: str) -> None:
    assert run(answer)["reward"] < 0.01


def test_the_same_names_on_one_line_earn_nothing() -> None:
    assert run(", ".join(right_answer()))["reward"] == 0.0


def test_settings_come_from_the_config_and_a_misspelt_one_is_refused() -> None:
    assert len(load(num_eval=7).get_eval_dataset()) == 7
    with pytest.raises(whet.WhetError, match="max_names"):
        load(max_nmaes=3)
