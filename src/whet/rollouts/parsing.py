"""Whether parsers found an answer in what the model wrote: `parse_failed` of a row.

A reward of 0 for a wrong answer and one for an answer that could not be parsed look the same; this separates them.
"""

from __future__ import annotations

from typing import Any

from whet.parsers.parser import Parser, unchanged
from whet.parsers.think_parser import MaybeThinkParser
from whet.rubrics.rubric import Rubric
from whet.rubrics.rubric_group import rubrics_of


def answer_missing(parser: Parser, rubric: Rubric, completion: Any) -> bool | None:
    """Whether no answer was found; None where any text is taken as it is, or there is no completion.

    The environment's `parser` counts, then those that the reward functions of its `rubric` are given.
    """
    reads = next(filter(_reads, [parser, *(one.parser for one in rubrics_of(rubric))]), None)
    if reads is None or completion is None:
        return None
    try:
        answer = reads.parse_answer(completion)
    except Exception:  # an author's own parser: one that breaks on a text has found nothing in it
        return True
    return answer is None or (isinstance(answer, str) and not answer.strip())


def _reads(parser: Parser) -> bool:
    """Whether a parser looks for something, and does not take any text as it is."""
    takes_all = type(parser) in (Parser, MaybeThinkParser) and parser.extract_fn is unchanged
    return not takes_all and hasattr(parser, "parse_answer")
