"""Reading answers out of completions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whet
from whet.types import AssistantMessage, UserMessage


def completion(*texts):
    return [AssistantMessage(text) for text in texts]


def test_the_plain_parser_takes_the_last_assistant_message():
    messages = [*completion("first", "second"), UserMessage("no answer of mine")]
    assert whet.Parser().parse_answer(messages) == "second"


def test_the_plain_parser_applies_its_extract_function():
    assert whet.Parser(extract_fn=str.upper).parse_answer(completion("yes")) == "YES"


def test_a_completion_without_assistant_has_no_answer():
    assert whet.Parser().parse_answer([UserMessage("hello")]) is None


def test_text_parts_of_a_content_list_are_joined_and_images_left_out():
    content = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "b"},
    ]
    assert whet.Parser().parse_answer([AssistantMessage(content)]) == "a b"


def test_content_that_is_none_reads_as_empty_text():
    assert whet.Parser().parse_answer([AssistantMessage(None)]) == ""


def test_plain_dicts_are_read_like_messages():
    assert whet.Parser().parse_answer([{"role": "assistant", "content": "x"}]) == "x"


def test_messages_are_picked_by_role():
    messages = [UserMessage("u"), AssistantMessage("a"), whet.ToolMessage("t", "1"), whet.SystemMessage("s")]
    parser = whet.Parser()
    assert [m.content for m in parser.get_user_messages(messages)] == ["u"]
    assert [m.content for m in parser.get_tool_messages(messages)] == ["t"]
    assert [m.content for m in parser.get_system_messages(messages)] == ["s"]


def test_the_think_parser_gives_nothing_without_the_closing_mark():
    assert whet.ThinkParser().parse("4") == ""
    assert whet.ThinkParser().parse("<think>2+2</think> 4 ") == "4"


def test_the_maybe_think_parser_gives_the_text_without_the_closing_mark():
    assert whet.MaybeThinkParser().parse(" 4 ") == "4"
    assert whet.MaybeThinkParser().parse("<think>a</think>b</think> 4") == "4"


@pytest.mark.parametrize(
    ("text", "score"),
    [("<think>a</think>b", 1.0), ("<think>a</think>", 0.0), ("b", 0.0), ("<think>a</think><think></think>b", 0.0)],
)
def test_the_think_format_is_one_block_and_something_after_it(text, score):
    assert whet.ThinkParser().get_format_reward_func()(completion=completion(text)) == score


def test_the_think_format_is_the_mean_over_messages():
    reward = whet.ThinkParser().get_format_reward_func()
    assert reward(completion=completion("<think>a</think>b", "b")) == 0.5


def test_xml_fields_are_attributes_and_missing_ones_are_none():
    parsed = whet.XMLParser(["reasoning", ("code", "answer")]).parse("<reasoning> a </reasoning><answer>4</answer>")
    assert (parsed.reasoning, parsed.code, parsed.answer) == ("a", None, "4")


def test_xml_takes_the_first_occurrence_unless_asked_for_the_last():
    parser = whet.XMLParser(["answer"])
    text = "<answer>1</answer><answer>2</answer>"
    assert parser.parse(text).answer == "1"
    assert parser.parse(text, last=True).answer == "2"
    assert parser.parse_answer(text) == "2"


def test_the_xml_answer_is_that_of_the_last_message_that_has_one():
    parser = whet.XMLParser(["answer"])
    assert parser.parse_answer(completion("<answer>1</answer>", "<answer>2</answer>", "done")) == "2"
    assert parser.parse_answer(completion("done")) is None


def test_xml_format_writes_what_parse_reads():
    parser = whet.XMLParser(["reasoning", ("code", "answer")])
    text = parser.format(reasoning="a\nb", answer="4")
    assert text == "<reasoning>\na\nb\n</reasoning>\n<code>\n4\n</code>"
    assert parser.parse(text).code == "4"


def test_xml_format_names_the_missing_field():
    with pytest.raises(ValueError, match="reasoning"):
        whet.XMLParser(["reasoning"]).format()


def test_the_xml_format_string_shows_alternatives():
    text = whet.XMLParser(["reasoning", ("code", "answer")]).get_format_str()
    assert text == "<reasoning>\n...\n</reasoning>\n<[ code | answer ]>\n...\n</[ code | answer ]>"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>a</think><answer>b</answer>", 1.0),
        ("so: <answer>b</answer>", 0.2 + 0.2 + 0.2),
        ("<answer>b", 0.2),
        ("nothing", 0.2),
    ],
)
def test_the_xml_format_reward_counts_fields_start_and_end(text, score):
    reward = whet.XMLParser(["think", "answer"]).get_format_reward_func()
    assert reward(completion=completion(text)) == pytest.approx(score)


def test_the_xml_format_reward_of_no_message_is_zero():
    assert whet.XMLParser(["answer"]).get_format_reward_func()(completion=[]) == 0.0


@pytest.mark.parametrize(("fields", "error"), [(["a", "a"], ValueError), ([()], ValueError), ([3], TypeError)])
def test_xml_fields_that_make_no_sense_are_refused(fields, error):
    with pytest.raises(error):
        whet.XMLParser(fields)


@given(st.text(alphabet=st.characters(blacklist_characters="<>"), max_size=30).map(str.strip))
def test_any_text_survives_being_formatted_and_parsed(text):
    parser = whet.XMLParser(["answer"])
    assert parser.parse_answer(parser.format(answer=text)) == text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{4}.", "4"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{{{}}}", "{{}}"),
    ],
)
def test_the_last_box_is_read_with_its_nested_braces(text, answer):
    assert whet.extract_boxed_answer(text) == answer


@pytest.mark.parametrize("text", ["4", r"\boxed{4", ""])
def test_without_a_closed_box_strict_finds_nothing(text):
    assert whet.extract_boxed_answer(text, strict=True) == ""
    assert whet.extract_boxed_answer(text) == text


def test_the_hash_answer_stands_after_the_marks():
    assert whet.extract_hash_answer("2+2\n#### 4 ") == "4"
    assert whet.extract_hash_answer("4") == "4"
    assert whet.extract_hash_answer("a #### b #### c") == "b"
