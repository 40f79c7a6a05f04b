"""A message survives every way it goes: into a result row and back, through a copy, to a server, to the next turn."""

import asyncio
import copy
import json
import pickle
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whet
from whet.clients.providers.openai_chat import OpenAIChatCompletionsClient
from whet.messages import copy_value, normalize_messages, object_text
from whet.rollouts.results import output_messages
from whet.rollouts.row_log import append_rows, load_outputs
from whet.types import AssistantMessage, ToolCall, ToolMessage, UserMessage

# Every character there is: control characters, right-to-left marks, combining ones, half characters.
ANY_TEXT = st.text(st.characters(), max_size=30) | st.sampled_from(
    ["", "\x00", "\ud83d", "\ude00\ud83d", "e\u0301" * 5, "\u202eabc\u202c", "‏שלום", "\ufeff", "\u2028", "</s>\r\n"]
)
PARTS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, ANY_TEXT),
    st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, ANY_TEXT),
    st.builds(lambda data: {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}, ANY_TEXT),
    st.builds(lambda value: {"type": "other", "value": value}, ANY_TEXT | st.integers()),
)
CONTENT = ANY_TEXT | st.lists(PARTS, max_size=3)
CALLS = st.lists(
    st.fixed_dictionaries({"id": ANY_TEXT, "name": ANY_TEXT, "arguments": ANY_TEXT}), min_size=1, max_size=3
)
SPEECH = st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": CONTENT})
RESULT = st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": ANY_TEXT, "content": CONTENT})
ANSWER = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": CONTENT | st.none()},
    optional={"reasoning_content": ANY_TEXT, "tool_calls": CALLS},
)
MESSAGES = st.lists(st.one_of(SPEECH, RESULT, ANSWER), max_size=5)


def said(messages):
    """What the messages say: a row does not tell None from nothing beside a call."""
    plain = [message.model_dump(exclude_none=True) for message in normalize_messages(messages)]
    return [{**message, "content": message.get("content") or ""} for message in plain]


@given(MESSAGES)
def test_a_message_survives_a_result_row(messages):
    row = json.loads(json.dumps(output_messages(normalize_messages(messages))))
    assert said(row) == said(messages)


@given(MESSAGES)
def test_a_row_read_back_makes_the_same_row(messages):
    row = json.loads(json.dumps(output_messages(normalize_messages(messages))))
    assert output_messages(normalize_messages(row)) == row


@given(MESSAGES)
@pytest.mark.parametrize("again", [copy_value, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_message_survives_being_copied(again, messages):
    given_messages = normalize_messages(messages)
    copied = again(given_messages)
    assert copied == given_messages
    assert [type(message) for message in copied] == [type(message) for message in given_messages]


@given(MESSAGES)
def test_normalizing_twice_changes_nothing_and_leaves_what_was_given(messages):
    before = copy.deepcopy(messages)
    once = normalize_messages(messages)
    assert normalize_messages([dict(message) for message in once]) == once
    assert messages == before


@given(MESSAGES)
def test_what_a_server_is_sent_is_utf8_and_says_the_same(messages):
    client = OpenAIChatCompletionsClient(None)
    native, _ = asyncio.run(client.to_native_prompt(normalize_messages(messages)))
    body = json.loads(json.dumps(native, ensure_ascii=False).encode())
    sendable = json.dumps(said(messages)).encode().decode()
    expected = said(json.loads(_whole_characters(sendable)))
    for message in expected:
        for call in message.get("tool_calls") or []:
            call["arguments"] = object_text(call["arguments"])  # endpoints take objects alone
    assert said(body) == expected


def _whole_characters(text):
    """JSON text whose half characters are replaced, as they are written: `\\ud800` alone."""
    value = json.loads(text)

    def mend(item):
        if isinstance(item, str):
            return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in item)
        if isinstance(item, list):
            return [mend(part) for part in item]
        return {key: mend(part) for key, part in item.items()} if isinstance(item, dict) else item

    return json.dumps(mend(value))


@settings(max_examples=25, deadline=None)
@given(prompt=st.lists(SPEECH, min_size=1, max_size=2), answer=ANSWER, response=st.lists(st.one_of(SPEECH, RESULT)))
def test_a_conversation_survives_a_rollout_and_its_results_on_disk(tmp_path_factory, prompt, answer, response):
    class Env(whet.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return response

    fields = {key: value for key, value in answer.items() if key != "role"}
    env = Env(dataset=[{"prompt": prompt, "answer": "", "info": {"kept": prompt}}], max_turns=2)
    shown = []

    def script(prompt, turn):
        shown.append(prompt)
        return fields if turn == 0 else "done"

    states = env.generate_sync(env.get_dataset(), whet.ScriptedClient(script), "m")["outputs"]
    assert states[0]["error"] is None
    assert said(shown[1]) == said([*prompt, answer, *response])
    directory = tmp_path_factory.mktemp("results")
    append_rows(directory, states)
    (row,) = load_outputs(directory)
    assert said(row["prompt"]) == said(prompt)
    assert said(row["completion"]) == said([answer, *response, {"role": "assistant", "content": "done"}])
    assert said(row["info"]["kept"]) == said(prompt)


def test_images_go_from_the_examples_through_tools_to_the_rows():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}

    def camera() -> list:
        """Take a picture."""
        return [{"type": "text", "text": "now"}, image]

    def microphone() -> list:
        """Listen."""
        return [sound]

    calls = [ToolCall("1", "camera", "{}"), ToolCall("2", "microphone", "{}")]
    env = whet.ToolEnv(
        tools=[camera, microphone],
        dataset=[{"question": [{"type": "text", "text": "look"}, image]}],
        few_shot=[UserMessage([image]), AssistantMessage("an image")],
    )
    (row,) = env.evaluate_sync(whet.ScriptedClient([{"tool_calls": calls}, "done"]), "m")["outputs"]
    assert [message["content"] for message in row["prompt"]] == [
        [image],
        "an image",
        [{"type": "text", "text": "look"}, image],
    ]
    assert row["completion"][1:3] == [
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "now"}, image]},
        {"role": "tool", "tool_call_id": "2", "content": [sound]},
    ]


def test_an_empty_list_from_a_tool_is_content_without_parts():
    def search() -> list:
        """Search."""
        return []

    env = whet.ToolEnv(tools=[search], dataset=[{"question": "?"}])
    answer = asyncio.run(env.call_tool("search", {}, "1"))
    assert answer == ToolMessage([], "1")


def test_a_judge_reads_the_text_of_a_prompt_with_images():
    asked = []

    def judge(prompt):
        asked.append(prompt[-1].content)
        return "yes"

    async def correct(judge, prompt, completion, answer, state):
        return float(await judge(prompt, completion, answer, state) == "yes")

    rubric = whet.JudgeRubric(judge_client=whet.ScriptedClient(judge), judge_prompt="{question}|{response}")
    rubric.add_reward_func(correct)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    env = whet.SingleTurnEnv(
        dataset=[{"prompt": [{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}]}], rubric=rubric
    )
    (row,) = env.evaluate_sync(whet.ScriptedClient([{"content": [{"type": "text", "text": "a cat"}]}]), "m")["outputs"]
    assert (asked, row["reward"]) == (["what?|a cat"], 1.0)


def test_messages_survive_the_columns_of_a_dataset():
    """Arrow gives every message the fields of all: None where a message has none."""
    datasets = pytest.importorskip("datasets")
    conversation = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "name": "look", "arguments": "{torn"}]},
        {"role": "tool", "content": "seen", "tool_call_id": "1"},
    ]
    stored = datasets.Dataset.from_list([{"prompt": conversation}])
    assert "tool_calls" in stored[0]["prompt"][0]
    env = whet.SingleTurnEnv(dataset=stored)
    assert said(env.get_dataset()[0]["prompt"]) == said(conversation)
    (row,) = env.evaluate_sync(whet.ScriptedClient(["done"]), "m")["outputs"]
    assert (said(row["prompt"]), row["error"]) == (said(conversation), None)


def test_a_judge_is_asked_in_whole_characters():
    asked = []

    class Completions:
        def create(self, *, model, messages):
            asked.append(messages[0]["content"].encode())
            message = {"content": "yes"}
            return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(**message))])

    client = SimpleNamespace(chat=SimpleNamespace(completions=Completions()))
    rubric = whet.JudgeRubric(judge_client=client, judge_prompt="{response}")
    assert asyncio.run(rubric.judge("q", "half a \ud800", "a")) == "yes"
    assert asked == ["half a \ufffd".encode()]
