"""Reward functions that compare with `answer`, where no row has one: every reward would be 0, and the task too hard."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from whet.calls import CallSpec, name_of
from whet.envs.env_group import EnvGroup, environment_of
from whet.envs.environment import Environment
from whet.errors import DatasetError
from whet.rubrics.rubric_group import rubrics_of

_MADE = ("example_id", "prompt", "task")
"""Columns that every row has; a `prompt` is also made of a `question`."""


def check_answers(env: Environment, rows: Sequence[Mapping[str, Any]], label: str) -> None:
    """Raise `DatasetError` where a reward function reads `answer`, and nothing can have set it.

    Args:
        env: an environment, or a group of them.
        rows: of its dataset, as they are attempted.
        label: the environment, in the message.
    """
    if isinstance(env, EnvGroup):
        members: dict[int, tuple[Environment, list[Mapping[str, Any]]]] = {}
        for row in rows:
            member = environment_of(env, row)
            members.setdefault(id(member), (member, []))[1].append(row)
        for member, own in members.values():
            check_answers(member, own, member.env_id or label)
        return
    if not rows or any("answer" in row for row in rows) or _sets_answers(env):
        return
    readers = [name_of(func) for func in _functions(env) if _reads_answer(func)]
    if readers:
        columns = dict.fromkeys(name for row in rows for name in row if name not in _MADE or name == "task")
        there = ", ".join(columns) or "none but the prompt"
        raise DatasetError(
            f"environment {label}: the reward function '{readers[0]}' takes `answer`, and no row of the dataset has a "
            f"column of that name. Columns: {there}. Rename one to `answer`, or name it in the function's parameters."
        )


def _functions(env: Environment) -> Iterator[Callable[..., Any]]:
    """Functions to which only the rows can give an answer."""
    for rubric in rubrics_of(env.rubric):
        offered = rubric.score_object_providers or rubric.group_score_object_providers
        if not offered and not {"answer", "answers"} & rubric.class_objects.keys():
            yield from rubric.funcs


def _sets_answers(env: Environment) -> bool:
    """Whether other code than that of whet's environments runs before the scoring: it may set `state["answer"]`."""
    hooks = ("setup_state", "init_state", "rollout", "env_response", "update_tool_args")
    own = [getattr(type(env), name) for name in hooks if hasattr(type(env), name)]
    return any(not hook.__module__.startswith("whet.envs.") for hook in own) or bool(env._setup_handlers)


def _reads_answer(func: Callable[..., Any]) -> bool:
    """Whether its code uses a parameter `answer`; a judge's prompt may go without one."""
    spec = CallSpec.of(func)
    taken = {"answer", "answers"}.intersection(spec.names)
    code = getattr(func, "__code__", None)
    if not taken or "judge" in spec.names or code is None:
        return False
    used = (one.argval for one in dis.get_instructions(code) if one.opname.startswith("LOAD_"))
    return any(taken.intersection(name if isinstance(name, tuple) else (name,)) for name in used)
