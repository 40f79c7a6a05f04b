"""The environments' prompts against the tokenizer: what every task says is whole tokens, what differs is bytes."""

import pytest
from scripts.tiny_model.experts import EXPERTS
from scripts.tiny_model.tokenizer import build_tokenizer

import whet
from whet.inference.rendering.chat_renderer import ChatRenderer

TOKENIZER = build_tokenizer()
RENDERER = ChatRenderer(TOKENIZER)

LONGEST_FIRST_PROMPT = {
    "reverse-text": 20,
    "alphabet-sort": 16,
    "calculator": 40,
    "guess-number": 16,
    "arithmetic": 16,
}


@pytest.mark.parametrize("env_id", EXPERTS)
def test_prompts_are_short_because_their_fixed_parts_are_single_tokens(env_id: str) -> None:
    env = whet.load_environment(env_id, num_train=50)
    lengths = [len(RENDERER.render(row["prompt"], env.tool_defs)) for row in env.get_dataset()]
    assert max(lengths) <= LONGEST_FIRST_PROMPT[env_id]


def test_the_tiny_tokenizer_is_recognised_as_qwen3() -> None:
    assert RENDERER.name == "qwen3"


def test_a_tool_call_is_read_back_from_its_tokens() -> None:
    call = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "12*34"}}\n</tool_call><|im_end|>'
    ids = TOKENIZER.encode(call)
    assert len(ids) <= 16
    (parsed,) = RENDERER.parse(ids).tool_calls
    assert (parsed["name"], parsed["arguments"]) == ("calculate", '{"expression": "12*34"}')
