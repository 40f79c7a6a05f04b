import pytest

import whet
from alphabet_sort import NAMES, load_environment, sorted_so_far


def task(**args: int) -> tuple[whet.Environment, list[list[str]]]:
    env = load_environment(num_train=1, num_eval=1, **args)
    return env, env.get_eval_dataset()[0]["info"]["turns"]


def run(env: whet.Environment, answers: list[list[str]]) -> dict:
    script = whet.ScriptedClient(["\n".join(names) for names in answers])
    return env.evaluate_sync(script, "scripted", state_columns=["trajectory"])["outputs"][0]


def test_training_and_evaluation_share_no_task_whatever_the_seeds() -> None:
    def tasks(seed: int, split: str) -> set[str]:
        env = load_environment(seed=seed)
        rows = env.get_dataset() if split == "train" else env.get_eval_dataset()
        return {repr(row["info"]["turns"]) for row in rows}

    assert (tasks(0, "train") | tasks(1, "train")).isdisjoint(tasks(0, "eval") | tasks(1, "eval"))


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others() -> None:
    first, again, other = (load_environment(seed=seed).get_dataset().to_list() for seed in (3, 3, 4))
    assert first == again != other


def test_names_arrive_over_as_many_turns_as_asked_for() -> None:
    env = load_environment(num_train=200, min_turns=2, max_turns=4, min_names_per_turn=1, max_names_per_turn=3)
    turns = [row["info"]["turns"] for row in env.get_dataset()]
    assert {len(each) for each in turns} == {2, 3, 4}
    assert {len(names) for each in turns for names in each} == {1, 2, 3}
    assert all(len(each[0]) >= 2 for each in turns)


def test_no_name_comes_twice_in_a_task() -> None:
    for row in load_environment(max_turns=4, max_names_per_turn=3).get_dataset():
        names = [name for turn in row["info"]["turns"] for name in turn]
        assert len(set(names)) == len(names)
    assert len(set(NAMES)) == len(NAMES)


def test_sorted_lists_after_every_turn_earn_everything() -> None:
    env, turns = task()
    output = run(env, sorted_so_far(turns))
    assert output["reward"] == 1.0
    assert output["metrics"]["exact_match"] == 1.0
    assert output["stop_condition"] == "all_names_given"


def test_the_model_is_shown_the_new_names_of_each_turn() -> None:
    env, turns = task(min_turns=3)
    shown = [
        message["content"] for message in run(env, sorted_so_far(turns))["completion"] if message["role"] == "user"
    ]
    assert [text.split("\n\n")[1].split("\n") for text in shown] == turns[1:]


def test_a_wrong_order_earns_part_and_is_no_exact_match() -> None:
    env, turns = task()
    expected = sorted_so_far(turns)
    output = run(env, [expected[0][::-1], *expected[1:]])
    assert 0.5 < output["reward"] < 1.0
    assert output["metrics"]["exact_match"] == 0.0


def test_other_names_earn_nothing() -> None:
    env, turns = task()
    assert run(env, [["Nobody"] for _ in turns])["reward"] == 0.0


def test_a_turn_that_was_never_reached_counts_nothing() -> None:
    env, turns = task(min_turns=2, max_turns=2)
    env.max_turns = 1
    output = run(env, sorted_so_far(turns)[:1])
    assert output["reward"] == 0.5
    assert output["metrics"]["exact_match"] == 0.0


@pytest.mark.parametrize(
    "args",
    [{"min_turns": 3, "max_turns": 2}, {"min_names_per_turn": 0}, {"max_turns": 60, "max_names_per_turn": 5}],
)
def test_arguments_that_make_no_sense_are_refused(args: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"turns|names"):
        load_environment(**args)
