"""The tokens of a turn do what a dict of lists does, whether their ids were read or not."""

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypedDict

from whet.lazy_ids import LazyIds, PromptIds, TurnTokens, unread
from whet.types import ResponseTokens

FIELDS: dict[str, Any] = {
    "prompt_ids": [5, 600, 7, 800],
    "prompt_mask": [0, 0, 0, 0],
    "completion_ids": [9],
    "completion_mask": [1],
    "completion_logprobs": [-0.5],
    "overlong_prompt": False,
    "is_truncated": False,
    "policy_version": [[3, 1]],
}


class Fields(TypedDict, total=False):
    prompt_ids: list[int]
    prompt_mask: list[int]


class Holder(BaseModel):
    tokens: dict[str, Any]
    prompt_ids: list[int]


def _compared(left: Any, right: Any) -> tuple[bool, bool]:
    return left == right, left != right


def _mapping_pattern(tokens: Any) -> Any:
    match tokens:
        case {"prompt_ids": ids, **rest}:
            return ids, rest
    return None


def _popped(tokens: Any, last: bool) -> Any:
    return (tokens.popitem() if last else tokens.pop("prompt_ids")), tokens


def _changed(tokens: Any) -> Any:
    tokens["prompt_ids"].append(4)
    tokens["prompt_mask"] += [0]
    tokens.setdefault("prompt_ids", []).append(6)
    tokens.setdefault("new", []).append(6)
    tokens |= {"completion_ids": [1, 2]}
    del tokens["policy_version"]
    return tokens


OPERATIONS = {
    "json": lambda t: (json.dumps(t), json.dumps([t], indent=1, sort_keys=True), json.dumps({"t": t}, skipkeys=True)),
    "pickle": lambda t: [pickle.loads(pickle.dumps(t, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)],
    "python pickle": lambda t: pickle.loads(pickle._dumps(t)),  # type: ignore[attr-defined]
    "copy": lambda t: (copy.copy(t), copy.deepcopy(t), t.copy()),
    "dict": lambda t: (dict(t), dict(t, new=1), {**t}, (lambda **given: given)(**t), {"new": 1} | t, t | {"new": 1}),
    "update": lambda t: [plain := {"prompt_ids": 3}, plain.update(t)],
    "items": lambda t: (list(t.items()), list(t.values()), list(t.keys()), list(t), list(reversed(t)), len(t)),
    "get": lambda t: (t.get("prompt_ids"), t.get("none"), t.get("none", 3), "prompt_ids" in t, "none" in t),
    "equal": lambda t: [
        _compared(*pair) for pair in ((t, FIELDS), (FIELDS, t), ([FIELDS], [t]), (t, {**t, "a": 1}), (t, 3))
    ],
    "text": lambda t: (repr(t), str(t), f"{t}", "{prompt_ids}".format(**t), "{prompt_mask}".format_map(t)),
    "match": _mapping_pattern,
    "pop": lambda t: _popped(t, last=False),
    "popitem": lambda t: [_popped(t, last=True)[0] for _ in range(len(t))],
    "pop nothing": lambda t: (t.pop("none", 3), t),
    "changed": _changed,
    "pydantic": lambda t: (
        Holder(tokens={"a": t["prompt_ids"]}, prompt_ids=t["prompt_ids"]).model_dump(),
        TypeAdapter(Fields).validate_python(t),
        TypeAdapter(dict[str, Any]).validate_python(dict(t), strict=True),
    ),
}


def turn(fields: dict[str, Any] = FIELDS) -> TurnTokens:
    """As a client makes them, the prompt being that of a third turn."""
    ids, earlier = fields["prompt_ids"], None
    for length in (len(ids) // 3, len(ids) // 2, len(ids)):
        earlier = PromptIds(ids[:length], earlier)
    return TurnTokens({**fields, "prompt_ids": earlier, "prompt_mask": LazyIds(len(ids))})


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_gives_what_a_dict_of_lists_gives(name: str) -> None:
    assert OPERATIONS[name](turn()) == OPERATIONS[name](copy.deepcopy(FIELDS))


@given(st.lists(st.integers(0, 2**31), min_size=1), st.lists(st.sampled_from([*OPERATIONS]), max_size=6))
def test_operations_in_any_order(ids: list[int], names: list[str]) -> None:
    plain = {**copy.deepcopy(FIELDS), "prompt_ids": ids, "prompt_mask": [0] * len(ids)}
    lazy = turn(plain)
    for name in names:
        results = []
        for tokens in (lazy, plain):
            try:
                results.append(OPERATIONS[name](tokens))
            except (KeyError, ValueError) as error:  # of fields that an operation has taken away
                results.append(type(error))
        assert results[0] == results[1]
        plain = dict(plain)
    assert lazy == plain


@given(st.lists(st.lists(st.integers(0, 9)), min_size=1, max_size=8))
def test_prompts_are_what_their_turns_were_given(added: list[list[int]]) -> None:
    prompts, ids, earlier = [], [], None
    for number, more in enumerate(added):
        ids = [*ids, *more]
        earlier = PromptIds(ids, earlier)
        prompts.append((earlier, ids))
        if number % 3 == 1:
            earlier.read()  # a list of its own from here on
    assert [(list(prompt), len(prompt), prompt.read()) for prompt, _ in prompts] == [
        (ids, len(ids), ids) for _, ids in prompts
    ]


def test_a_list_that_was_changed_changes_no_later_prompt() -> None:
    first = PromptIds([1, 2])
    second = PromptIds([1, 2, 3], first)
    first.read().append(9)
    third = PromptIds([1, 2, 9, 4], first)
    assert (first.read(), second.read(), third.read()) == ([1, 2, 9], [1, 2, 3], [1, 2, 9, 4])


def test_the_record_of_a_turn_and_the_answer_have_one_list() -> None:
    answer = ResponseTokens(PromptIds([1, 2]), [3], [-0.5])
    step = TurnTokens(prompt_ids=unread(answer, "prompt_ids"))
    assert step["prompt_ids"] is answer.prompt_ids
    copied = pickle.loads(pickle.dumps((step, answer)))
    assert copied[0]["prompt_ids"] is copied[1]["prompt_ids"]
    assert type(unread(copied[1], "prompt_mask")) is list
