"""Contract of the environment library: datasets.

1. A dataset is a `datasets.Dataset`, a list of dicts, or a callable that returns one, built on first access and once.
2. The `datasets` package is optional.
3. A row without `prompt` gets system prompt, few-shot messages and its `question` as a user message.
4. A row with `prompt` gets the system message unless one is first, and no few-shot messages.
5. `answer` is a string; `info` is a dict or JSON text of one, and reaches reward functions as a dict.
6. An `example_id` that is no integer moves to `src_id`; missing ones become 0, 1, 2, ...
7. `get_dataset(n, seed)` gives the first n rows of an order drawn by the seed; n of -1 or beyond the end gives all.
8. `get_eval_dataset` does the same, and falls back to the training rows.
9. Without training rows `get_dataset` says so.
10. Further columns stay, and are offered to reward functions by name.
11. A row that is no task is an error that names it.
12. A column `env_id` is taken out, since routing goes by `info`.
"""

import subprocess
import sys

import pytest

import whet


def rows(count):
    return [{"question": f"q{index}", "answer": f"a{index}"} for index in range(count)]


@pytest.mark.parametrize("kind", ["list", "datasets.Dataset", "callable", "callable of a Dataset"])
def test_1_a_dataset_is_a_list_a_dataset_or_a_callable(kind):
    calls = []

    def build():
        calls.append(1)
        return rows(2) if kind == "callable" else datasets.Dataset.from_list(rows(2))

    if "Dataset" in kind:
        datasets = pytest.importorskip("datasets")
    given = {"list": lambda: rows(2), "datasets.Dataset": lambda: datasets.Dataset.from_list(rows(2))}.get(
        kind, lambda: build
    )()
    env = whet.SingleTurnEnv(dataset=given)
    assert calls == []
    for _ in range(2):
        assert [row["prompt"] for row in env.get_dataset()] == [
            [{"role": "user", "content": f"q{index}"}] for index in range(2)
        ]
    assert calls == ([1] if "callable" in kind else [])


def test_2_the_datasets_package_is_optional():
    script = """
import sys
sys.modules["datasets"] = None
import whet
env = whet.SingleTurnEnv(dataset=[{"question": "q"}])
print(env.evaluate_sync(whet.ScriptedClient(["a"]), "m")["outputs"][0]["reward"])
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "0.0\n"


def test_3_a_question_becomes_a_prompt():
    shots = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    env = whet.SingleTurnEnv(dataset=rows(1), system_prompt="Be right.", few_shot=shots)
    assert env.get_dataset()[0]["prompt"] == [
        {"role": "system", "content": "Be right."},
        *shots,
        {"role": "user", "content": "q0"},
    ]


def test_4_a_prompt_gets_the_system_message_unless_it_has_one(caplog):
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "u"}]
    shots = [{"role": "user", "content": "shot"}]
    env = whet.SingleTurnEnv(dataset=[{"prompt": own}, {"prompt": own[1:]}], system_prompt="Ours.", few_shot=shots)
    assert env.get_dataset()["prompt"] == [own, [{"role": "system", "content": "Ours."}, own[1]]]
    assert "go without the few_shot messages" in caplog.text


def test_5_info_is_a_dict_or_json_text():
    seen = []

    def score(info, answer):
        seen.append((info, answer))
        return 0.0

    dataset = [{"question": "q", "answer": "a", "info": {"n": 1}}, {"question": "q", "answer": "b", "info": '{"n": 2}'}]
    env = whet.SingleTurnEnv(dataset=dataset, rubric=whet.Rubric([score]))
    env.evaluate_sync(whet.ScriptedClient(["x"]), "m")
    assert seen == [({"n": 1}, "a"), ({"n": 2}, "b")]


def test_6_example_ids():
    assert whet.SingleTurnEnv(dataset=rows(3)).get_dataset()["example_id"] == [0, 1, 2]
    given = [{"question": "q", "example_id": name} for name in ("x", "y")]
    dataset = whet.SingleTurnEnv(dataset=given).get_dataset()
    assert (dataset["example_id"], dataset["src_id"]) == ([0, 1], ["x", "y"])
    kept = [{"question": "q", "example_id": number} for number in (7, 3)]
    assert whet.SingleTurnEnv(dataset=kept).get_dataset()["example_id"] == [7, 3]


@pytest.mark.parametrize(("n", "length"), [(-1, 10), (0, 10), (3, 3), (50, 10)])
def test_7_the_first_n_of_an_order_drawn_by_the_seed(n, length):
    env = whet.SingleTurnEnv(dataset=rows(10))
    assert env.get_dataset(n)["example_id"] == list(range(length))
    drawn = env.get_dataset(n, seed=3)["example_id"]
    assert len(drawn) == length
    assert drawn == env.get_dataset(n, seed=3)["example_id"]
    assert drawn == env.get_dataset(seed=3)["example_id"][:length]
    assert drawn != env.get_dataset(n, seed=4)["example_id"]


def test_8_evaluation_rows_fall_back_to_the_training_rows():
    assert len(whet.SingleTurnEnv(dataset=rows(3)).get_eval_dataset()) == 3
    env = whet.SingleTurnEnv(dataset=rows(3), eval_dataset=rows(20))
    assert len(env.get_eval_dataset()) == 20
    assert sorted(env.get_eval_dataset(seed=1)["example_id"]) == list(range(20))
    assert env.get_eval_dataset(5, seed=1)["example_id"] == env.get_eval_dataset(seed=1)["example_id"][:5]


def test_9_without_training_rows_it_says_so():
    with pytest.raises(whet.WhetError, match="environment 'mine' has no training dataset"):
        whet.SingleTurnEnv(eval_dataset=rows(1), env_id="mine").get_dataset()


def test_10_further_columns_are_offered_by_name():
    env = whet.SingleTurnEnv(
        dataset=[{"question": "q", "difficulty": 3}], rubric=whet.Rubric([lambda difficulty: float(difficulty)])
    )
    assert env.evaluate_sync(whet.ScriptedClient(["x"]), "m")["outputs"][0]["reward"] == 3.0


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"answer": "a"}, "row 1 of the dataset has neither 'prompt' nor 'question'"),
        ({"question": 3}, "row 1 of the dataset has a question of int"),
        (
            {"prompt": [{"role": "user", "content": None}]},
            r"row 1 of the dataset: prompt\[0\] \(role user\) has content",
        ),
        ({"question": "q", "info": "{torn"}, "row 1 of the dataset: 'info' is a string that is not JSON"),
        ({"question": "q", "info": "[1]"}, "row 1 of the dataset: 'info' is list"),
        ("text", "row 1 of the dataset is str"),
    ],
)
def test_11_a_row_that_is_no_task_is_named(row, says):
    with pytest.raises(whet.WhetError, match=says):
        whet.SingleTurnEnv(dataset=[{"question": "q"}, row])


def test_12_a_column_env_id_is_taken_out():
    assert "env_id" not in whet.SingleTurnEnv(dataset=[{"question": "q", "env_id": "x"}]).get_dataset().column_names
