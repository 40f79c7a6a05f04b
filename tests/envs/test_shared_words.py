"""Messages at the edge, calls by name, decorators, keys and logs: the small things every room uses."""

import copy
import functools
import json
import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whet
from whet.calls import CallSpec, describe, name_of
from whet.decorators import discover_decorated
from whet.messages import as_tool_call, content_text, copy_value, normalize_messages
from whet.types import AssistantMessage, Record, State, ToolCall, UserMessage

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def test_messages_that_are_messages_are_the_same_list():
    messages = [UserMessage("a")]
    assert normalize_messages(messages) is messages


def test_a_single_message_and_a_tuple_become_lists():
    assert normalize_messages({"role": "user", "content": "a"}) == [UserMessage("a")]
    assert normalize_messages((UserMessage("a"),)) == [UserMessage("a")]


def test_objects_that_dump_themselves_are_messages():
    class Foreign:
        def model_dump(self, exclude_none):
            return {"role": "assistant", "content": "x"}

    assert normalize_messages([Foreign()]) == [AssistantMessage("x")]


@pytest.mark.parametrize(
    "given_call",
    [
        {"id": "1", "name": "t", "arguments": '{"a": 1}'},
        {"id": "1", "type": "function", "function": {"name": "t", "arguments": '{"a": 1}'}},
        {"id": "1", "function": {"name": "t", "arguments": {"a": 1}}},
        json.dumps({"id": "1", "name": "t", "arguments": '{"a": 1}'}),
    ],
)
def test_tool_calls_of_every_form_are_the_same(given_call):
    assert as_tool_call(given_call) == ToolCall(id="1", name="t", arguments='{"a": 1}')


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([{"role": "robot", "content": ""}], "role 'robot'"),
        ([{"role": "user", "content": "", "tool_calls": []}], "tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "no name"),
        (3, "should be a list"),
    ],
)
def test_what_is_no_message_is_said(value, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        normalize_messages(value, field_name="prompt")


def test_content_of_objects_is_read_like_parts():
    class Part:
        text = "b"

    assert content_text([{"type": "text", "text": "a"}, Part()]) == "a b"


@given(JSON)
def test_a_copied_value_is_equal_and_shares_nothing_that_changes(value):
    again = copy_value({"value": value})
    assert again == {"value": value}
    if isinstance(value, list | dict):
        assert again["value"] is not value


def test_a_copied_message_stays_a_message():
    message = AssistantMessage("a", tool_calls=[ToolCall("1", "t", "{}")])
    again = copy_value(message)
    assert again == message
    assert type(again) is AssistantMessage
    assert again["tool_calls"][0] is not message["tool_calls"][0]


@pytest.mark.parametrize("again", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_messages_can_be_deep_copied_and_pickled(again):
    message = AssistantMessage("a", tool_calls=[ToolCall("1", "t", "{}")])
    assert again(message) == message
    assert type(again(message)) is AssistantMessage


def test_a_record_is_a_dict_with_attributes():
    record = Record(a=1)
    record.b = 2
    assert (record.a, record["b"], record.get("c")) == (1, 2, None)
    assert not hasattr(record, "c")
    assert record.model_copy(update={"a": 3}) == {"a": 3, "b": 2}
    assert UserMessage("a").model_copy(update={"content": "b"}) == UserMessage("b")


def test_a_state_forwards_the_rows_fields():
    state = State(input={"prompt": [], "answer": "a"}, answer="shadowed", reward=None)
    assert (state["answer"], state.get("answer"), state.get("info", {})) == ("a", "a", {})
    state["answer"] = "b"
    assert state["input"]["answer"] == "b"
    state["info"] = {"n": 1}
    assert (state["info"], "info" in state["input"]) == ({"n": 1}, False)
    with pytest.raises(KeyError):
        state["example_id"]


def test_a_state_without_a_row_is_a_dict():
    state = State(prompt=[1])
    assert (state["prompt"], state.get("answer", "none")) == ([1], "none")


def test_a_function_is_called_with_what_it_names():
    def function(a, *, b=1, **rest): ...

    assert CallSpec.of(function).select({"a": 1, "c": 2}) == {"a": 1, "c": 2}
    assert CallSpec.of(lambda a, b=2: a).select({"a": 1, "c": 2}) == {"a": 1}


def test_names_of_partials_and_objects():
    assert name_of(functools.partial(functools.partial(describe))) == "describe"
    assert name_of(CallSpec) == "CallSpec"


def test_an_error_is_described_with_its_line():
    with pytest.raises(ValueError, match="no number") as caught:
        raise ValueError("no number")
    assert describe(caught.value).startswith("ValueError: no number (")
    assert "test_shared_words.py:" in describe(caught.value)
    assert describe(KeyError()) == "KeyError"


def test_decorated_methods_are_found_without_touching_properties():
    class Marked:
        @property
        def dangerous(self):
            raise AssertionError("touched")

        @whet.stop(priority=-1)
        def last(self): ...

        @whet.stop
        def b(self): ...

        @whet.stop
        def a(self): ...

    class Child(Marked):
        @whet.stop(priority=10)
        def first(self): ...

        def b(self): ...

    assert [method.__name__ for method in discover_decorated(Child(), "stop")] == ["first", "a", "last"]


@pytest.mark.parametrize("mark", [whet.setup, whet.cleanup, whet.teardown, whet.update, whet.metric, whet.advantage])
def test_every_mark_is_set_with_and_without_arguments(mark):
    def plain(): ...

    def with_priority(): ...

    assert mark(plain) is plain
    assert mark(priority=3)(with_priority) is with_priority
    name = mark.__name__
    assert (getattr(plain, name), getattr(plain, f"{name}_priority")) == (True, 0)
    assert getattr(with_priority, f"{name}_priority") == 3


def test_a_reward_mark_carries_its_weight():
    assert whet.reward(weight=0.5)(lambda: None).reward_weight == 0.5


def test_missing_keys_are_all_named(monkeypatch):
    monkeypatch.setenv("WHET_TEST_SET", "x")
    whet.ensure_keys(["WHET_TEST_SET"])
    with pytest.raises(whet.MissingKeyError, match="WHET_TEST_A, WHET_TEST_B"):
        whet.ensure_keys(["WHET_TEST_A", "WHET_TEST_SET", "WHET_TEST_B"])


def test_logging_is_set_up_once_and_its_level_can_be_lent(capsys):
    whet.setup_logging("info")
    whet.setup_logging("warning")
    logging.getLogger("whet.test").warning("once")
    with whet.log_level("ERROR"):
        logging.getLogger("whet.test").warning("not this")
    assert capsys.readouterr().err.count("once") == 1
    assert logging.getLogger("whet").level == logging.WARNING


def test_a_sample_is_printed_with_its_reward_or_error(capsys):
    call = ToolCall("1", "add", "{}")
    whet.print_prompt_completions_sample(
        [[UserMessage("question")], [UserMessage("hidden")]],
        [[AssistantMessage(None, tool_calls=[call])], [AssistantMessage("x")]],
        [whet.ModelError("gone"), None],
        [None, 1.0],
        step=3,
    )
    printed = capsys.readouterr().out
    assert "step 3" in printed
    assert "question" in printed
    assert "add({})" in printed
    assert "hidden" not in printed
