"""Contract of the environment library: parsers.

1. `Parser`: the last assistant message, or text, as it is; `extract_fn` reads on.
2. Content parts are read as their text; content that is None as "".
3. Messages are picked by role.
4. `XMLParser(fields=[str | tuple], answer_field="answer")`: `parse` gives a namespace, None where a tag is missing.
5. An alternative in a tuple has an attribute of its own, and the canonical name is the first.
6. `parse_answer` gives the answer of the last message that has one.
7. `format`, `get_fields` and `get_format_str`; what `format` writes `parse` reads.
8. The format reward is between 0 and 1, and 1 for what `format` writes.
9. `ThinkParser`: what stands after `</think>`, and "" without that mark.
10. `ThinkParser`'s format reward is the share of messages that are one thought and something after it.
11. `MaybeThinkParser`: what stands after `</think>`, or the text.
12. `extract_boxed_answer`: the last box with its nested braces; otherwise the text, or "" where strict.
13. `extract_hash_answer`: what stands after `####`.
14. A parser given to rubric and environment is offered to reward functions.
"""

import pytest

import whet

ASSISTANT = whet.AssistantMessage


def test_1_the_plain_parser():
    assert whet.Parser().parse_answer([ASSISTANT("a"), whet.UserMessage("u"), ASSISTANT("b")]) == "b"
    assert whet.Parser().parse_answer("text") == "text"
    assert whet.Parser(extract_fn=str.upper).parse_answer([ASSISTANT("b")]) == "B"
    assert whet.Parser().parse_answer([whet.UserMessage("u")]) is None


def test_2_parts_and_none():
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "text", "text": "b"},
    ]
    assert whet.Parser().parse_answer([ASSISTANT(parts)]) == "a b"
    assert whet.Parser().parse_answer([ASSISTANT(None)]) == ""


def test_3_messages_by_role():
    messages = [whet.SystemMessage("s"), whet.UserMessage("u"), ASSISTANT("a"), whet.ToolMessage("t", "1")]
    parser = whet.Parser()
    picked = [
        parser.get_system_messages(messages),
        parser.get_user_messages(messages),
        parser.get_assistant_messages(messages),
        parser.get_tool_messages(messages),
    ]
    assert picked == [[message] for message in messages]


def test_4_a_namespace_of_tags():
    parsed = whet.XMLParser(["reasoning", "answer"]).parse("<answer>\n 4 \n</answer>")
    assert (parsed.answer, parsed.reasoning) == ("4", None)


def test_5_alternatives():
    parser = whet.XMLParser(["reasoning", ("code", "answer")])
    parsed = parser.parse("<answer>4</answer>")
    assert (parsed.code, parsed.answer, parser.get_fields()) == (None, "4", ["reasoning", "code"])


def test_6_the_answer():
    parser = whet.XMLParser(["answer"])
    assert parser.parse_answer([ASSISTANT("<answer>1</answer>"), ASSISTANT("no tag")]) == "1"
    assert parser.parse_answer([ASSISTANT("<answer>1</answer>"), ASSISTANT("<answer>2</answer>")]) == "2"
    assert parser.parse_answer([ASSISTANT("none")]) is None
    assert whet.XMLParser(["final"], answer_field="final").parse_answer("<final>3</final>") == "3"


def test_7_format_and_parse():
    parser = whet.XMLParser(["reasoning", ("code", "answer")])
    text = parser.format(reasoning="r", answer="a")
    assert text == "<reasoning>\nr\n</reasoning>\n<code>\na\n</code>"
    assert vars(parser.parse(text)) == {"reasoning": "r", "code": "a", "answer": None}
    assert parser.get_format_str() == "<reasoning>\n...\n</reasoning>\n<[ code | answer ]>\n...\n</[ code | answer ]>"
    with pytest.raises(ValueError, match="Missing value for field 'code'"):
        parser.format(reasoning="r")


def test_8_the_format_reward():
    parser = whet.XMLParser(["reasoning", "answer"])
    reward = parser.get_format_reward_func()
    assert reward([ASSISTANT(parser.format(reasoning="r", answer="a"))]) == pytest.approx(1.0)
    assert 0 < reward([ASSISTANT("<answer>a</answer>")]) < 1
    assert 0 <= reward([ASSISTANT("nothing")]) < reward([ASSISTANT("<answer>a</answer>")])


def test_9_think():
    parser = whet.ThinkParser(extract_fn=str.strip)
    assert parser.parse("<think>t</think> a ") == "a"
    assert parser.parse("a") == ""
    assert parser.parse("<think>t</think>b</think>c") == "c"


def test_10_the_format_of_thoughts():
    reward = whet.ThinkParser().get_format_reward_func()
    assert reward([ASSISTANT("<think>t</think>a")]) == 1.0
    assert reward([ASSISTANT("<think>t</think>a"), ASSISTANT("a")]) == 0.5


def test_11_maybe_think():
    assert whet.MaybeThinkParser().parse("<think>t</think> a ") == "a"
    assert whet.MaybeThinkParser().parse(" a ") == "a"
    assert whet.MaybeThinkParser().parse("<think>cut off") == ""
    assert whet.MaybeThinkParser().parse("a <think>cut off") == "a"


@pytest.mark.parametrize(
    ("text", "loose", "strict"),
    [
        ("\\boxed{1} \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}", "\\frac{1}{2}"),
        ("no box", "no box", ""),
        ("\\boxed{1", "\\boxed{1", ""),
        ("\\boxed {1}", "1", "1"),
        ("\\fbox{1}", "1", "1"),
        ("\\boxed{1} or \\fbox\n{2}", "2", "2"),
        ("\\box{1}", "\\box{1}", ""),
    ],
)
def test_12_the_boxed_answer(text, loose, strict):
    assert (whet.extract_boxed_answer(text), whet.extract_boxed_answer(text, strict=True)) == (loose, strict)


def test_13_the_hash_answer():
    assert whet.extract_hash_answer("so\n#### 42") == "42"
    assert whet.extract_hash_answer("none") == "none"


def test_14_the_parser_is_offered():
    parser = whet.XMLParser(["answer"])

    def right(parser, completion, answer):
        return float(parser.parse_answer(completion) == answer)

    rubric = whet.Rubric([right, parser.get_format_reward_func()], parser=parser)
    env = whet.SingleTurnEnv(dataset=[{"question": "q", "answer": "4"}], parser=parser, rubric=rubric)
    (output,) = env.evaluate_sync(whet.ScriptedClient(["<answer>4</answer>"]), "m")["outputs"]
    assert output["reward"] == 2.0
