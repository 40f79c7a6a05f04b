"""The tokenizer of whet/tiny: 256 bytes without merges, Qwen3's special tokens, and whole phrases; 512 tokens in all.

No merges on purpose: reversing and sorting are about characters, and a merge would hide them. The special tokens and
the chat template are those of the Qwen3 format, so that the `renderers` package's Qwen3 renderer and
`apply_chat_template` give the same tokens. The template follows that renderer also where it departs from the published
one: with `enable_thinking=False` earlier turns keep the empty thinking block they were sampled behind.

This file makes the tokenizer; it is not needed to use the model, which `AutoTokenizer` loads from its directory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from whet.models.tiny import path

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


MAX_LENGTH = 1024
"""Positions the model is made for, in tokens."""


def chat_template() -> str:
    """The Jinja text of the Qwen3 chat format."""
    return (path() / "chat_template.jinja").read_text(encoding="utf-8")


def vocabulary() -> list[str]:
    """All tokens that are not single bytes, in order of their ids (the first has id 256).

    What is left of the 512 is reserved, named `<|reserved_0|>` and so on, for markers of a user's own.
    """
    tokens = [*SPECIAL_TOKENS, *MARKER_TOKENS, *WORDS, *TEMPLATE_PHRASES, *TASK_PHRASES]
    spare = VOCABULARY_SIZE - 256 - len(tokens)
    assert spare >= 0, f"{-spare} phrases too many for {VOCABULARY_SIZE} tokens"
    assert len(set(tokens)) == len(tokens), "a phrase is named twice"
    return tokens + [f"<|reserved_{i}|>" for i in range(spare)]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, made from nothing but this package. Any text survives encoding and decoding unchanged."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())  # one printable stand-in for each of the 256 bytes
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    reserved = {token for token in vocabulary() if token.startswith("<|reserved_")}
    backend.add_tokens(
        [
            AddedToken(
                token,
                single_word=token in WORDS,
                normalized=False,
                special=token in SPECIAL_TOKENS or token in reserved,
            )
            for token in vocabulary()
        ]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
        padding_side="left",
    )
    tokenizer.chat_template = chat_template()
    assert len(tokenizer) == VOCABULARY_SIZE
    return tokenizer


def save_tokenizer(directory: Path) -> None:
    """The files that `AutoTokenizer` loads, also where an older `transformers` (a vLLM server's, say) reads them."""
    build_tokenizer().save_pretrained(directory)
    file = directory / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


# The fixed phrases that are single tokens of whet/tiny.
#
# A tiny model cannot afford to read "Answer with the reversed text only." byte by byte, so what the example
# environments say in every task, and the fixed parts of a Hermes tool call, are tokens of their own. What differs
# between tasks (letters to reverse, names to sort, numbers) must stay spelt in bytes, so that the model sees the
# characters it has to move: therefore every phrase here holds a space, a newline or punctuation that such data does not
# hold, or matches only as a word of its own (`WORDS`).
#
# The environments do not import this file. Their prompts are the truth; tests/scripts/tiny_model/test_phrases.py fails
# when a prompt drifts away from its phrases.

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Skipped when decoding with `skip_special_tokens`, as in Qwen3."""

MARKER_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Markers that are part of the text, as in Qwen3."""

WORDS = ("system", "user", "calculate", "calculate_args", "expression", "Expression")
"""Matched only between characters that are not part of a word."""

TEMPLATE_PHRASES = (
    "assistant\n",
    "\n\n",
    "# Tools\n\n"
    "You may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>",
    "\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n"
    "<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>",
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"properties": {"',
    '": {"description": "',
    '", "title": "',
    '", "type": "string"}}',
    ', "required": ["',
    '"], "title": "',
    '", "type": "object", "additionalProperties": false}}}',
    '{"name": "',
    '", "arguments": {"',
    '": "',
    '"}}\n',
    ", ",
)
"""What the chat format and JSON schemas of tools say in every prompt."""

TASK_PHRASES = (
    # reverse-text
    "Reverse the text. Answer with the reversed text only.\n\n",
    # alphabet-sort
    "Sort these names alphabetically. Answer with the sorted names only, one per line.\n\n",
    "Add these names. Answer with all names so far, sorted, one per line.\n\n",
    # calculator
    "Use the calculate tool, then answer with its result only.\n\nWhat is ",
    "Evaluate an arithmetic expression.",
    "Numbers with + - * / and parentheses, for example 12*34.",
    " plus ",
    " minus ",
    " times ",
    "Error: ",
    # guess-number
    "I think of a whole number from ",
    " to ",
    ". Guess it: I say higher or lower. Answer with one number only.",
    "My number is higher.",
    "My number is lower.",
    "That was not a number. Answer with one number only.",
    # arithmetic
    "Give the result in \\boxed{}.\n\nWhat is ",
    "\\boxed{",
    " + ",
    " - ",
    " * ",
)
"""What the five example environments say in every task."""

VOCABULARY_SIZE = 512
