# ruff: noqa: E501  the wordings of servers are long
"""Wordings of servers for a request that does not fit into the context, and wordings that look like them."""

import time

import pytest

from whet.clients.providers.provider_errors import is_overflow, room_in

OVERFLOWS = [
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. Please reduce the length of the messages.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "context_length_exceeded",
    "This model's maximum context length is 262144 tokens. However, you requested 0 output tokens and your prompt contains at least 262145 input tokens, for a total of at least 262145 tokens.",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens.",
    "Input length (265330) exceeds model's maximum context length (262144).",
    "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "the request exceeds the available context size. try increasing the context size or enable context shift",
    "request (4100 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "exceed_context_size_error",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Unable to submit request because the input token count is 32825 but model only supports up to 32768.",
    "This model's maximum prompt length is 131072 but the request contains 137197 tokens.",
    "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000; `inputs` tokens + `max_new_tokens` must be <= 4096",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292.",
    "too many tokens: size limit exceeded by 100 tokens. Try using shorter or fewer inputs.",
    "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough. Try to load the model with a larger context length, or provide a shorter input",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
    "Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "prompt is too long: 212000 tokens > 200000 maximum",
    "Input is too long for requested model.",
    "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again",
    "The prompt is too long: 140000, model maximum context length: 131071",
    "Prompt too long: 5152 tokens exceeds max_seq_len 2048 (leave room for output tokens)",
    "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
    "Please reduce the length of the messages or completion.",
    "prompt too long; exceeded max context length by 12 tokens",
    "context window exceeds limit (2013)",
    "Invalid request: Your request exceeded model token limit: 8192 (requested: 8200)",
    "Range of input length should be [1, 30720]",
    "Request body too large for gpt-4o model. Max size: 8000 tokens. tokens_limit_reached",
    "Prompt exceeds max length",
    "Prompt tokens (9000) exceeds context size (4096)",
    "Requested input length 40000 exceeds maximum input length 32768",
    "The request is longer than the model's context limit",
    "prompt (100) and max_tokens (4000) exceed the context of 512",
]
OTHERS = [
    "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 4000. Please reduce the length of the messages.",
    "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 7000, please reduce your message size and try again.",
    "Unknown parameter: 'context_management'.",
    "temperature exceeds the maximum of 2",
    "Too many images in the prompt: at most 5 are possible.",
    "messages: at least one message is required",
    "Invalid 'messages[2].content': string too short",
    "The image is too large: at most 5 MB are possible.",
    "n exceeds the maximum of 8",
    "You exceeded your current quota, please check your plan and billing details.",
    "The response was filtered due to the prompt triggering a content management policy.",
    "stop: at most 4 sequences are allowed",
    "input should be a valid string",
]  # fmt: skip


@pytest.mark.parametrize("words", OVERFLOWS)
def test_a_refusal_that_names_the_context_is_an_overflow(words):
    assert is_overflow(words)


@pytest.mark.parametrize("words", OTHERS)
def test_other_refusals_are_none(words):
    assert not is_overflow(words)
    assert room_in(words, 100) is None


def test_numbers_may_have_separators():
    room = room_in("maximum context length is 131,072 tokens and your request has 1_000 input tokens", 200_000)
    assert (room.context, room.prompt, room.left()) == (131_072, 1_000, 130_072)


def test_a_long_refusal_costs_little():
    """The words are a stranger's; nothing in the patterns may take time that grows with their square."""
    words = (
        "prompt a " * 400,
        "maximum context length is 1 tokens " * 90,
        "1" * 3000,
        "input " * 500,
        "context is 1 " * 250,
    )
    began = time.process_time()
    for text in words:
        is_overflow(text)
        room_in(text, 5)
    assert time.process_time() - began < 5
