"""The fixed phrases that are single tokens of whet/tiny.

A tiny model cannot afford to read "Answer with the reversed text only." byte by byte, so what the example environments
say in every task, and the fixed parts of a Hermes tool call, are tokens of their own. What differs between tasks
(letters to reverse, names to sort, numbers) must stay spelt in bytes, so that the model sees the characters it has to
move: therefore every phrase here holds a space, a newline or punctuation that such data does not hold, or matches only
as a word of its own (`WORDS`).

The environments do not import this file. Their prompts are the truth; tests/models/test_phrases.py fails when a prompt
drifts away from its phrases.
"""

from __future__ import annotations

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
