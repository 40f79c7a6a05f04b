"""Scripted answers that a review tries on an environment: right ones in every usual form, and ones without merit. Pure.

Each probe is a text that the model says at every turn, or a function of the turn. Those without merit are what policies
find under pressure: nothing, the question, every option, another task's answer, the format alone, no end of text, tools
for their own sake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whet.authoring.review.row_facts import answer_text
from whet.messages import content_text
from whet.parsers.parser import Parser
from whet.parsers.think_parser import ThinkParser
from whet.parsers.xml_parser import XMLParser

Say = Callable[[int], str | dict[str, Any]]
Form = Callable[[str], str]
Row = Mapping[str, Any]

RIGHT = "right answer"
MAX_TURNS = 40  # after so many a rollout is taken to be endless
LONG = 100_000  # characters
OPTION = re.compile(r"^\s*\(?([A-J])[).:]\s+\S", re.MULTILINE)


def forms(parser: Parser) -> dict[str, Form]:
    """The ways to state an answer, by name."""

    def fielded(text: str) -> str:
        if isinstance(parser, XMLParser):
            values = dict.fromkeys(parser.get_fields(), "...")
            return parser.format(**{**values, parser.answer_field: text})
        return f"<answer>\n{text}\n</answer>"

    plain: dict[str, Form] = {
        "plain": lambda text: text,
        "in tags": fielded,
        "boxed": lambda text: f"\\boxed{{{text}}}",
        "after ####": lambda text: f"#### {text}",
        "in a sentence": lambda text: f"The answer is {text}.",
    }
    if isinstance(parser, ThinkParser):
        return {name: _after_thinking(form) for name, form in plain.items()}
    return plain


def _after_thinking(form: Form) -> Form:
    return lambda text: f"<think>\nLet me see.\n</think>\n\n{form(text)}"


def right_answers(row: Row, parser: Parser) -> dict[str, Say]:
    """The row's own answer in every form; nothing where the row has none."""
    answer = row.get("answer")
    if not isinstance(answer, str) or not answer.strip():
        return {}
    return {f"{RIGHT}, {name}": always(form(answer)) for name, form in forms(parser).items()}


def without_merit(
    row: Row, answers: Sequence[str], most_common: str, form: Form, tools: Sequence[Mapping[str, Any]]
) -> dict[str, Say]:
    """Answers that no task should reward, in the form that right answers are rewarded in.

    `answers` are those of tasks from all over the data set. Where several are given (options and numbers too), the
    right one is neither the first nor the last, which a parser may rightly take for the answer.
    """
    prompt = content_text(row["prompt"][-1]["content"])
    own = answer_text(row)
    others = [text for text in answers if text != own]
    several = _within(own, others)
    end = "7" if own != "7" else "8"
    texts = {
        "nothing": "",
        "refusal": "I am sorry, but I cannot help with that.",
        "the prompt": prompt,
        "the prompt as answer": form(prompt),
        "format without answer": form(""),
        "placeholder": form("..."),
        "every number": form(" ".join(map(str, [end, *range(1000), end]))),
        "no end of text": "and so on " * (LONG // 10),
        "unclosed tags": "<answer>\\boxed{" * (LONG // 15),
        "odd characters": form("\x00\u202e\U0001f600\ufffd\u0301"),
    }
    if own and others:
        texts["another task's answer"] = form(others[0])
        texts["several answers"] = form(", ".join(several))
        texts["several answers, one after the other"] = "\n".join(map(form, several))
    if most_common and most_common != own:
        texts["the most common answer"] = form(most_common)
    options = list(dict.fromkeys(OPTION.findall(prompt)))
    if own in (*options[:1], *options[-1:]):  # what a parser takes of the prompt may be its first or last option
        del texts["the prompt"], texts["the prompt as answer"]
    if len(options) > 1:
        options = _within(own, [option for option in options if option != own]) if own in options else options
        texts["every option"] = form(", ".join(options))
        texts["every option, one after the other"] = "\n".join(map(form, options))
    probes = {name: always(text) for text, name in {text: name for name, text in reversed(texts.items())}.items()}
    if tools:
        probes["tools for their own sake"] = lambda turn: call_all(tools, turn)
        probes["broken tool calls"] = lambda turn: broken_calls(tools, turn)
    return probes


def _within(own: str, others: Sequence[str]) -> list[str]:
    """All of them, `own` neither first nor last."""
    half = len(others) // 2
    return [*(others[:half] or others[-1:]), own, *others[half:]]


def always(text: str) -> Say:
    return lambda turn: text


def call_all(tools: Sequence[Mapping[str, Any]], turn: int) -> dict[str, Any]:
    """Every tool twice, with arguments that fit its schema and mean nothing."""
    calls = [
        {"id": f"{turn}-{index}", "name": tool["name"], "arguments": json.dumps(example(tool["parameters"]))}
        for index, tool in enumerate([*tools, *tools])
    ]
    return {"content": "", "tool_calls": calls}


def broken_calls(tools: Sequence[Mapping[str, Any]], turn: int) -> dict[str, Any]:
    """Arguments that are no JSON, no object, of the wrong types, and a tool that does not exist."""
    name = tools[0]["name"]
    wrong = {key: [None] for key in tools[0]["parameters"].get("properties", {})}
    arguments = ['{"a": ', "[1, 2]", "{}", json.dumps(wrong), json.dumps({"unheard_of": 1})]
    calls = [{"id": f"{turn}-{i}", "name": name, "arguments": text} for i, text in enumerate(arguments)]
    calls.append({"id": f"{turn}-none", "name": "no_such_tool", "arguments": "{}"})
    return {"content": "", "tool_calls": calls}


def example(schema: Mapping[str, Any]) -> Any:
    """A value that fits a JSON schema of the simple kind that tools have."""
    if schema.get("enum"):
        return schema["enum"][0]
    for several in ("anyOf", "oneOf", "allOf"):
        if schema.get(several):
            return example(schema[several][0])
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return {name: example(part) for name, part in schema.get("properties", {}).items()}
    empty: dict[Any, Any] = {"string": "1", "integer": 1, "number": 1.0, "boolean": True, "array": []}
    return empty.get(kind)
