from __future__ import annotations

import logging
import re
import socket
from decimal import Decimal
from pathlib import Path

import pytest

import whet
from gsm8k import STAND_IN, SYSTEM_PROMPT, load_environment, number_of, steps_of
from gsm8k.stand_in import make_problems, split_of
from whet.errors import DatasetError


def run(env: whet.Environment, text: str) -> dict:
    return env.evaluate_sync(whet.ScriptedClient([text]), "scripted", num_examples=1)["outputs"][0]


def made_up(**args: object) -> whet.Environment:
    return load_environment(source="stand-in", **args)


def right_answer(env: whet.Environment) -> str:
    return env.get_eval_dataset()[0]["answer"]


def test_a_directory_in_the_form_of_the_data_set_is_read(folder: Path) -> None:
    env = load_environment(dataset=str(folder))
    assert [row["answer"] for row in env.get_dataset()] == ["5", "1400"]
    assert [row["info"] for row in env.get_dataset()] == [{"source": str(folder), "steps": n} for n in (1, 2)]
    assert [row["answer"] for row in env.get_eval_dataset()] == ["6"]


def test_a_training_question_that_is_also_held_out_is_not_trained_on(folder: Path) -> None:
    env = load_environment(dataset=str(folder))
    assert not any("birds" in row["question"] for row in env.get_dataset())


def test_the_data_set_comes_from_the_hub_once_and_then_from_the_cache(hub, folder: Path) -> None:
    first = load_environment(source="hub").get_dataset().to_list()
    assert [row["answer"] for row in first] == ["5", "1400"]
    assert {row["info"]["source"] for row in first} == {"openai/gsm8k"}
    assert not any("socratic/" in path for path in hub.asked)
    asked = len(hub.asked)
    assert load_environment(source="hub").get_dataset().to_list() == first
    assert len(hub.asked) == asked


def test_what_is_in_the_cache_is_used_offline(hub, hugging_face: pytest.MonkeyPatch) -> None:
    load_environment(source="hub").get_dataset()
    hugging_face.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    env = load_environment()
    assert [row["answer"] for row in env.get_eval_dataset()] == ["6"]


def test_a_data_set_that_the_hub_does_not_have_is_an_error_and_nothing_stands_in(hub) -> None:
    with pytest.raises(DatasetError, match="has no data set openai/gsm9k"):
        load_environment(dataset="openai/gsm9k").get_dataset()


@pytest.mark.parametrize("how", ["refused", "offline", "silent"])
def test_problems_that_stand_in_for_an_unreachable_hub_say_so(
    how: str, hugging_face: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hugging_face.setattr("gsm8k.hub.PROBE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, caplog.at_level(logging.WARNING):
        if how == "silent":
            endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
            hugging_face.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        hugging_face.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", how == "offline")
        env = load_environment(num_train=3, num_eval=1)
        rows = [*env.get_dataset(), *env.get_eval_dataset()]
    assert {row["info"]["source"] for row in rows} == {STAND_IN}
    assert caplog.text.count("STAND IN") == 1
    assert run(env, "")["metrics"]["stand_in"] == 1.0


def test_with_source_hub_nothing_stands_in() -> None:
    with pytest.raises(DatasetError, match="not in the Hugging Face cache"):
        load_environment(source="hub").get_dataset()


def test_real_problems_are_not_marked_as_stand_ins(folder: Path) -> None:
    assert run(load_environment(dataset=str(folder)), "")["metrics"]["stand_in"] == 0.0


@pytest.mark.parametrize("dataset", ["./nowhere", "no-owner", "a/b/c"])
def test_a_data_set_that_is_neither_a_directory_nor_a_name_is_refused(dataset: str) -> None:
    with pytest.raises(DatasetError, match="neither a directory nor owner/name"):
        load_environment(dataset=dataset).get_dataset()


def test_a_directory_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(DatasetError, match="is not laid out like openai/gsm8k"):
        load_environment(dataset=str(tmp_path)).get_dataset()


def test_a_solution_without_its_answer_is_refused(folder: Path, write_split) -> None:
    write_split(folder, "test", [("How many?", "Nobody knows.")])
    with pytest.raises(DatasetError, match=r"does not end in '#### ' and a number: 'Nobody knows.'"):
        load_environment(dataset=str(folder)).get_eval_dataset()


def test_problems_are_chosen_by_the_calculations_in_their_solutions(folder: Path) -> None:
    env = load_environment(dataset=str(folder), min_steps=2)
    assert [row["answer"] for row in env.get_dataset()] == ["1400"]
    with pytest.raises(DatasetError, match=r"no problem of .* takes 2 to 3 calculation steps"):
        load_environment(dataset=str(folder), min_steps=2, max_steps=3).get_eval_dataset()


@pytest.mark.parametrize(
    ("solution", "steps"), [("2+3=<<2+3=5>>5\n3*5=<<3*5=15>>15\n#### 15", 2), ("First 5.\nThen 15.\n#### 15", 2)]
)
def test_steps_are_marked_calculations_or_else_lines(solution: str, steps: int) -> None:
    assert steps_of(solution) == steps


def test_the_solutions_of_made_up_problems_are_right() -> None:
    for problem in make_problems("train", 300, seed=1, steps=range(1, 13)):
        *lines, last = problem["answer"].split("\n")
        number = int(re.search(r"has (\d+) ", problem["question"]).group(1))
        for line in lines:
            left, sign, right, result = re.search(r"<<(\d+)([-+*/])(\d+)=(\d+)>>\4\b", line).groups()
            sums = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}
            assert int(result) == (sums[sign] if sign in sums else Decimal(left) / int(right))
            assert int(result) > 0
            assert left in problem["question"] or int(left) == number
            assert right in problem["question"] or sign in "+-*"
            number = number if "hold" in line or "get <<" in line else int(result)
        assert last == f"#### {number}"


@pytest.mark.parametrize("steps", [1, 2, 5, 12])
def test_made_up_problems_take_as_many_steps_as_asked_for(steps: int) -> None:
    env = made_up(num_train=50, num_eval=10, min_steps=steps, max_steps=steps)
    assert {row["info"]["steps"] for row in [*env.get_dataset(), *env.get_eval_dataset()]} == {steps}


def test_made_up_training_and_evaluation_share_no_problem_whatever_the_seeds() -> None:
    envs = [made_up(seed=seed) for seed in (0, 1)]
    train = {row["question"] for env in envs for row in env.get_dataset()}
    held_out = {row["question"] for env in envs for row in env.get_eval_dataset()}
    assert train.isdisjoint(held_out)
    assert {split_of(question) for question in train} == {"train"}
    assert (len(envs[0].get_dataset()), len(envs[0].get_eval_dataset())) == (2000, 500)


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others(folder: Path) -> None:
    for args in ({"source": "stand-in", "num_train": 20}, {"dataset": str(folder), "num_train": 1}):
        tasks = [load_environment(seed=seed, **args).get_dataset().to_list() for seed in (0, 0, 1, 2, 3)]
        assert tasks[0] == tasks[1]
        assert any(other != tasks[0] for other in tasks[2:])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        (" 42. ", 42),
        ("-3", -3),
        ("18.00", 18),
        ("0.5", Decimal("0.5")),
        ("1,234,567", 1234567),
        ("1{,}000", 1000),
        (r"\$1,000", 1000),
        ("$7$", 7),
        (r"12\text{ apples}", 12),
        (r"50\%", 50),
        ("", None),
        ("1,2,3", None),
        ("41, 42", None),
        ("41 42", None),
        ("41 or 42", None),
        (r"1 \cup 42", None),
        ("1=42", None),
        ("x=42", None),
        ("84/2", None),
        ("1e2", None),
        ("٤٢", None),
        ("forty-two", None),
        ("4" * 1000, None),
    ],
)
def test_a_box_counts_if_it_holds_one_number(text: str, number: Decimal | int | None) -> None:
    assert number_of(text) == number


def test_the_boxed_right_number_earns_everything() -> None:
    env = made_up()
    output = run(env, rf"So it is \boxed{{{right_answer(env)}}}.")
    assert output["reward"] == 1.0
    assert output["metrics"]["boxed_number"] == 1.0


def test_only_the_last_box_after_any_thinking_counts() -> None:
    env = made_up()
    right = right_answer(env)
    assert run(env, rf"\boxed{{{right}}} or \boxed{{{right}1}}")["reward"] == 0.0
    assert run(env, rf"\boxed{{{right}1}}, no, \boxed{{{right}}}")["reward"] == 1.0
    assert run(env, rf"<think>\boxed{{{right}}}</think> I do not know.")["reward"] == 0.0


@pytest.mark.parametrize("kind", ["empty", "no box", "prompt repeated", "all numbers", "very long", "unclosed"])
def test_answers_that_solve_nothing_earn_nothing(kind: str) -> None:
    env = made_up()
    right = right_answer(env)
    text = {
        "empty": "",
        "no box": right,
        "prompt repeated": f"{SYSTEM_PROMPT} {env.get_eval_dataset()[0]['question']}",
        "all numbers": rf"\boxed{{{', '.join(map(str, range(5000)))}}}",
        "very long": rf"\boxed{{{right + ' ' * 1_000_000 + right}}}",
        "unclosed": r"\boxed{" * 100_000 + right,
    }[kind]
    assert run(env, text)["reward"] == 0.0


@pytest.mark.parametrize("args", [{"source": "web"}, {"min_steps": 0}, {"min_steps": 3, "max_steps": 2}])
def test_arguments_that_make_no_sense_are_refused(args: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must|need"):
        load_environment(**args)
