"""Whether the parser of an environment found an answer in what the model wrote: `parse_failed` of a result row.

A reward of 0 for a wrong answer and one for an answer that could not be parsed look the same; this separates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whet.envs.env_group import environment_of, rubrics_of
from whet.envs.environment import Environment
from whet.parsers.parser import Parser, unchanged
from whet.parsers.think_parser import MaybeThinkParser


def parse_failed(env: Environment, rollout: Mapping[str, Any]) -> bool | None:
    """Whether no answer was found; None where the environment takes whatever the model writes.

    Args:
        env: the environment of the rollout, or a group that has it.
        rollout: a state or a result row: `completion`, and `info` where a group says whose it is.
    """
    env = environment_of(env, rollout)
    known = [env.parser, *(rubric.parser for rubric in rubrics_of(env.rubric))]
    parser = next(filter(_reads, known), None)
    completion = rollout.get("completion")
    if parser is None or completion is None:
        return None
    try:
        answer = parser.parse_answer(completion)
    except Exception:  # an author's own parser: one that breaks on a text has found nothing in it
        return True
    return answer is None or (isinstance(answer, str) and not answer.strip())


def _reads(parser: Parser) -> bool:
    """Whether a parser looks for something, and does not take any text as it is."""
    takes_all = type(parser) in (Parser, MaybeThinkParser) and parser.extract_fn is unchanged
    return not takes_all and hasattr(parser, "parse_answer")
