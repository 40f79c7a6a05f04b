"""Huge messages cost in proportion to their size: work is counted (lines run, characters copied), not timed.

Each case is run small and ten times as large; what is counted may grow tenfold and a little, never a hundredfold.
"""

import asyncio
import sys
import tracemalloc

import pytest

import whet
from whet.messages import content_text, copy_value, normalize_messages
from whet.parsers.parser import extract_boxed_answer
from whet.rollouts.results import output_messages, state_to_output

FACTOR = 10


def lines_run(work):
    """Lines of Python that `work()` runs."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def grows_no_faster_than_its_size(make, size):
    """`make(n)` gives the work for size n."""
    make(size)()  # what is imported or remembered the first time
    small, large = (lines_run(make(count)) for count in (size, FACTOR * size))
    assert large <= 2 * FACTOR * small, (small, large)


def conversation(count):
    call = {"id": "1", "name": "t", "arguments": "{}"}
    return [
        {"role": "user", "content": "a"} if index % 2 else {"role": "assistant", "content": None, "tool_calls": [call]}
        for index in range(count)
    ]


@pytest.mark.parametrize(
    "step",
    [
        normalize_messages,
        lambda messages: copy_value(normalize_messages(messages)),
        lambda messages: output_messages(normalize_messages(messages)),
        lambda messages: whet.XMLParser(["answer"]).parse_answer(normalize_messages(messages)),
    ],
    ids=["normalize", "copy", "row", "parse"],
)
def test_many_messages(step):
    grows_no_faster_than_its_size(lambda count: lambda: step(conversation(count)), 1_000)


def many_calls(count):
    calls = [{"id": str(index), "name": "t", "arguments": '{"a": 1}'} for index in range(count)]

    def t(a: int) -> int:
        """A tool."""
        return a

    env = whet.ToolEnv(tools=[t], dataset=[{"question": "?"}], max_turns=3)
    client = whet.ScriptedClient([{"tool_calls": calls}, "done"])
    return lambda: env.evaluate_sync(client, "m")


def test_many_tool_calls_in_one_message():
    grows_no_faster_than_its_size(many_calls, 100)


def test_a_thousand_tool_calls_are_all_answered_and_counted():
    (row,) = many_calls(1_000)()["outputs"]
    assert (row["total_tool_calls"], row["t_calls"], len(row["completion"])) == (1_000.0, 1_000.0, 1_002)
    assert [message["tool_call_id"] for message in row["completion"][1:-1]] == [str(index) for index in range(1_000)]


def test_ten_thousand_messages_go_through_a_rollout():
    env = whet.SingleTurnEnv(dataset=[{"prompt": conversation(10_000), "answer": ""}])
    (row,) = env.evaluate_sync(whet.ScriptedClient(["done"]), "m")["outputs"]
    assert (len(row["prompt"]), row["error"]) == (10_000, None)


class Writes(whet.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [whet.UserMessage("go on")]


def test_long_text_is_never_copied():
    """Ten turns with a prompt of 10 MB: what is held beside the prompt itself is far less than another copy of it."""
    text = "x" * 10_000_000
    env = Writes(dataset=[{"question": text}], max_turns=10)
    client = whet.ScriptedClient(["a"] * 10)
    tracemalloc.start()
    try:
        state = asyncio.run(env.rollout(env.get_dataset()[0], client, "m", {}))
        state_to_output(state)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(state["trajectory"]) == 10
    assert peak < len(text) / 10


UNCLOSED = {
    "tags without an end": "<answer>",
    "ends without a beginning": "</answer>",
    "white space in a tag": "<answer> ",
    "thoughts without an end": "<think>",
    "braces": "{",
    "boxes": "\\boxed{",
    "marks": "####",
}


@pytest.mark.parametrize("piece", UNCLOSED.values(), ids=UNCLOSED.keys())
@pytest.mark.parametrize(
    "read",
    [
        whet.XMLParser(["reasoning", "answer"]).parse_answer,
        lambda text: whet.XMLParser(["answer"]).get_format_reward_func()([whet.AssistantMessage(text)]),
        whet.ThinkParser().parse,
        whet.MaybeThinkParser().parse,
        extract_boxed_answer,
        whet.extract_hash_answer,
        lambda text: content_text([{"type": "text", "text": text}]),
    ],
    ids=["xml", "xml format", "think", "maybe think", "boxed", "hash", "content"],
)
def test_text_made_to_mislead_a_parser(read, piece):
    grows_no_faster_than_its_size(lambda count: lambda: read(piece * count), 1_000)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["<answer>", "<answer>" + " " * 100, "</answer>"])
def test_half_a_megabyte_of_tags_is_read_at_once(piece):
    """A pattern that goes back over the text would be at this for hours; lines run do not show it."""
    parser = whet.XMLParser(["answer"])
    assert parser.parse_answer(piece * (500_000 // len(piece))) is None
    assert parser.parse_answer("<answer>" + " " * 500_000) is None
