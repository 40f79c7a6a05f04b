"""Whether the parser of an environment found an answer in what the model wrote: `parse_failed` of a result row.

A reward of 0 for a wrong answer and one for an answer that could not be parsed look the same; this separates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from whet.envs.env_group import ROUTE_KEY, EnvGroup
from whet.envs.environment import Environment
from whet.parsers.maybe_think_parser import MaybeThinkParser
from whet.parsers.parser import Parser, unchanged
from whet.rubrics.rubric import Rubric
from whet.rubrics.rubric_group import RubricGroup


def parse_failed(env: Environment, rollout: Mapping[str, Any]) -> bool | None:
    """Whether no answer was found; None where the environment takes whatever the model writes.

    Args:
        env: the environment of the rollout, or a group that has it.
        rollout: a state or a result row: `completion`, and `info` where a group says whose it is.
    """
    parser = next(filter(_reads, _parsers(_own(env, rollout.get("info")))), None)
    completion = rollout.get("completion")
    if parser is None or completion is None:
        return None
    try:
        answer = parser.parse_answer(completion)
    except Exception:  # an author's own parser: one that breaks on a text has found nothing in it
        return True
    return answer is None or (isinstance(answer, str) and not answer.strip())


def _own(env: Environment, info: Any) -> Environment:
    """The environment that a rollout of a group belongs to."""
    route = info.get(ROUTE_KEY) if isinstance(info, Mapping) else None
    for name in [route] if isinstance(route, str) else route or []:
        if isinstance(env, EnvGroup):
            env = env.get_env_for_name(name)
    return env


def _parsers(env: Environment) -> Iterator[Parser]:
    """The environment's, then those that its reward functions are given."""
    yield env.parser
    yield from _of_rubric(env.rubric)


def _of_rubric(rubric: Rubric) -> Iterator[Parser]:
    if isinstance(rubric, RubricGroup):
        for one in rubric.rubrics:
            yield from _of_rubric(one)
    else:
        yield rubric.parser


def _reads(parser: Parser) -> bool:
    """Whether a parser looks for something, and does not take any text as it is."""
    takes_all = type(parser) in (Parser, MaybeThinkParser) and parser.extract_fn is unchanged
    return not takes_all and hasattr(parser, "parse_answer")
