"""The tiny tokenizer: lossless, byte-level on data, and one chat format with the `renderers` package."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers import Qwen3RendererConfig, create_renderer
from scripts.tiny_model.tokenizer import WORDS, build_tokenizer, vocabulary

TOKENIZER = build_tokenizer()

TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}

pieces = st.one_of(
    st.text(max_size=12), st.sampled_from(vocabulary()), st.sampled_from(["\n", " ", "user", "é", "\x00"])
)
texts = st.lists(pieces, max_size=8).map("".join)


@settings(max_examples=300, deadline=None)
@given(texts)
def test_decoding_gives_back_any_text(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


def test_the_vocabulary_has_exactly_512_tokens_and_every_id_is_used_once() -> None:
    assert len(TOKENIZER) == 512
    assert sorted(TOKENIZER.get_vocab().values()) == list(range(512))


def test_every_phrase_is_one_token() -> None:
    for phrase in vocabulary():
        assert len(TOKENIZER.encode(phrase, add_special_tokens=False)) == 1, phrase


def test_words_inside_other_words_stay_bytes() -> None:
    assert TOKENIZER.encode("xusery", add_special_tokens=False) == [TOKENIZER.encode(c)[0] for c in "xusery"]


def test_lowercase_letters_names_and_digits_are_always_spelt_in_bytes() -> None:
    rng = random.Random(0)
    for _ in range(500):
        word = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=rng.randint(1, 12)))
        if word not in WORDS:
            assert len(TOKENIZER.encode(word, add_special_tokens=False)) == len(word)


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [{"role": "user", "content": "Reverse the text. Answer with the reversed text only.\n\nabc"}],
    "a system message": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "an empty system message": [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}],
    "two turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c\n"},
    ],
    "an answered question": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\nb"}],
    "thinking in its own field": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "\nhm\n"},
    ],
    "thinking inside the content": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "<think>\nhm </think> d </think> e"},
    ],
    "a tool call and its answer": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "calculate", "arguments": '{"expression": "1+2"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "assistant", "content": "3"},
    ],
    "two tool calls with arguments as objects and words around them": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "first",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "calculate", "arguments": {"expression": "é"}}},
                {"id": "2", "type": "function", "function": {"name": "other", "arguments": {"n": 1}}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "tool", "tool_call_id": "2", "content": "4"},
    ],
    "a late system message": [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "now"},
        {"role": "user", "content": "<tool_response>x</tool_response>"},
        {"role": "assistant", "content": "b"},
    ],
}


@pytest.mark.parametrize("enable_thinking", [True, False])
@pytest.mark.parametrize("with_tools", [True, False])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_chat_template_and_the_qwen3_renderer_agree_token_by_token(
    name: str, add_generation_prompt: bool, with_tools: bool, enable_thinking: bool
) -> None:
    messages: list[Any] = CONVERSATIONS[name]
    tools: list[Any] | None = [TOOL] if with_tools else None
    renderer = create_renderer(TOKENIZER, Qwen3RendererConfig(enable_thinking=enable_thinking))
    rendered = renderer.render_ids(messages, tools=tools, add_generation_prompt=add_generation_prompt)
    templated = TOKENIZER.apply_chat_template(
        messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        enable_thinking=enable_thinking,
        return_dict=False,
    )
    assert templated == rendered


def test_the_tokenizer_survives_saving_and_loading(tmp_path: Any) -> None:
    from transformers import AutoTokenizer

    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    messages: list[Any] = CONVERSATIONS["a tool call and its answer"]
    assert loaded.apply_chat_template(messages, tools=[TOOL]) == TOKENIZER.apply_chat_template(messages, tools=[TOOL])
    assert loaded.eos_token_id == TOKENIZER.convert_tokens_to_ids("<|im_end|>")
