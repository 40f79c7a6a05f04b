"""From what an author gives to rows that are ready to be attempted."""

import pytest

import whet
from whet.envs.datasets import RowDataset, build_dataset


def prompt_of(row, **kwargs):
    return [(message["role"], message["content"]) for message in build_dataset([row], **kwargs)[0]["prompt"]]


def test_a_question_follows_the_system_prompt_and_the_examples():
    shots = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    assert prompt_of({"question": "q"}, system_prompt="s", few_shot=shots) == [
        ("system", "s"), ("user", "1"), ("assistant", "2"), ("user", "q"),
    ]  # fmt: skip


def test_a_prompt_gets_the_system_message_unless_it_has_one():
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "q"}]
    assert prompt_of({"prompt": own}, system_prompt="s")[0] == ("system", "own")
    assert prompt_of({"prompt": own[1:]}, system_prompt="s") == [("system", "s"), ("user", "q")]


def test_a_text_prompt_is_for_completion_models():
    assert prompt_of({"prompt": "once upon"}) == [("text", "once upon")]


def test_prompts_are_messages_by_attribute_too():
    assert build_dataset([{"question": "q"}])[0]["prompt"][0].content == "q"


def test_the_authors_rows_are_left_as_they_were():
    rows = [{"question": "q", "env_id": "x", "example_id": "a"}]
    build_dataset(rows)
    assert rows == [{"question": "q", "env_id": "x", "example_id": "a"}]


def test_missing_example_ids_are_numbered():
    assert build_dataset([{"question": "a"}, {"question": "b"}])["example_id"] == [0, 1]


def test_integer_example_ids_stay():
    assert build_dataset([{"question": "a", "example_id": 7}])["example_id"] == [7]


@pytest.mark.parametrize("ids", [["x", "y"], ["x", 5], [True, False], [1.0, 2.0]])
def test_other_example_ids_move_to_src_id(ids):
    dataset = build_dataset([{"question": "q", "example_id": one} for one in ids])
    assert (dataset["example_id"], dataset["src_id"]) == ([0, 1], ids)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"answer": "4"}, "neither 'prompt' nor 'question' (its columns: answer)"),
        ({"question": 4}, "a question of int"),
        ({"question": None, "prompt": None}, "neither"),
        ({"prompt": [{"content": "x"}]}, "prompt[0] has role None"),
        ({"prompt": [3]}, "prompt[0] should be a message"),
        ({"prompt": 5}, "should be a list of messages"),
        ({"question": "q", "info": "{"}, "'info' is a string that is not JSON"),
        ({"question": "q", "info": "[1]"}, "'info' is list"),
        ("text", "is str; it should be a dict"),
    ],
)
def test_a_row_that_is_no_task_is_named(row, problem):
    with pytest.raises(whet.WhetError) as caught:
        build_dataset([{"question": "fine"}, row])
    assert "row 1 of the dataset" in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize(("source", "problem"), [([], "has no rows"), (5, "is int"), ({"question": ["a"]}, "is dict")])
def test_a_dataset_that_is_none_is_refused(source, problem):
    with pytest.raises(whet.WhetError, match=problem):
        build_dataset(source)


def test_a_text_prompt_has_no_place_for_a_system_prompt():
    with pytest.raises(whet.WhetError, match="system_prompt has no place"):
        build_dataset([{"prompt": "text"}], system_prompt="s")


def test_a_dataset_of_the_datasets_package_is_read_by_its_methods():
    class Dataset:
        column_names = ("question",)

        def to_list(self):
            return [{"question": "q"}]

    assert build_dataset(Dataset())[0]["prompt"][0].content == "q"


def test_a_callable_is_asked_once_and_only_when_needed():
    calls = []

    def build():
        calls.append(1)
        return [{"question": "q"}]

    env = whet.SingleTurnEnv(dataset=build)
    assert calls == []
    env.get_dataset()
    env.get_dataset()
    assert calls == [1]


def test_an_environment_needs_a_dataset():
    with pytest.raises(whet.WhetError, match="no dataset"):
        whet.SingleTurnEnv()


def test_the_eval_dataset_falls_back_to_the_training_one_but_not_the_other_way():
    assert whet.SingleTurnEnv(dataset=[{"question": "q"}]).get_eval_dataset()["question"] == ["q"]
    with pytest.raises(whet.WhetError, match="only an eval_dataset"):
        whet.SingleTurnEnv(eval_dataset=[{"question": "q"}]).get_dataset()


def test_the_first_n_rows():
    env = whet.SingleTurnEnv(dataset=[{"question": str(index)} for index in range(5)])
    assert env.get_dataset(2)["question"] == ["0", "1"]
    assert len(env.get_dataset(9)) == 5


def test_rows_can_be_selected_filtered_mapped_repeated_and_listed():
    rows = RowDataset([{"a": 1}, {"a": 2}, {"a": 3}])
    assert rows.select([2, 0])["a"] == [3, 1]
    assert rows.filter(lambda row: row["a"] > 1)["a"] == [2, 3]
    assert rows.map(lambda row: {"b": row["a"] * 2})["b"] == [2, 4, 6]
    assert rows.repeat(2)["a"] == [1, 2, 3, 1, 2, 3]
    assert (rows[1:]["a"], rows[-1], rows.column_names) == ([2, 3], {"a": 3}, ["a"])
    with pytest.raises(KeyError):
        rows["missing"]


def test_listed_rows_are_copies():
    rows = RowDataset([{"info": {"n": 1}}])
    rows.to_list()[0]["info"]["n"] = 2
    assert rows[0]["info"]["n"] == 1


def test_an_empty_prompt_may_be_filled_during_the_rollout():
    class Deals(whet.SingleTurnEnv):
        async def setup_state(self, state):
            state["prompt"] = [{"role": "user", "content": state["info"]["deal"]}]

    env = Deals(dataset=[{"prompt": [], "info": {"deal": "a card"}}])
    (row,) = env.evaluate_sync(whet.ScriptedClient(lambda state, turn: state["prompt"][0].content), "m")["outputs"]
    assert row["prompt"] == [{"role": "user", "content": "a card"}]
    assert row["completion"] == [{"role": "assistant", "content": "a card"}]


def test_an_empty_prompt_that_stays_empty_is_a_mistake_that_says_what_to_do():
    env = whet.SingleTurnEnv(dataset=[{"prompt": [], "answer": "x"}])
    with pytest.raises(whet.WhetError, match=r"example 0 has an empty prompt.*fill state\['prompt'\] in setup_state"):
        env.evaluate_sync(whet.ScriptedClient(["."]), "m")
