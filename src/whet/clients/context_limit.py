"""How servers say that a request does not fit into the model's context, and how many tokens that leaves for the answer.

The wordings are those of servers and providers seen in public; `tests/clients/test_context_limit.py` has them all. A
rate limit ("tokens per minute") also counts tokens and is none of these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_N = r"(\d[\d,_]*)"
_RATE = re.compile(r"\b(per|a) (second|minute|hour|day|month)\b|\b[tr]p[mds]\b|rate.?limit", re.IGNORECASE)
_OVERFLOW = re.compile(
    r"context[\s_-]*(length|window|limit|size|overflow)"
    r"|(length|limit|exceed\w*|maximum|max|overflow\w*)\W+(?:\w+\W+){0,4}context\b"
    r"|\b(prompt|input|conversation)[\s_]*(?:(?:is|was|are)\s+)?too[\s_]*(long|large|many tokens)"
    r"|too many (?:\w+ ){0,2}(tokens|text bytes)"
    r"|(maximum|max)[\s_]*(?:allowed[\s_]*)?(?:model|prompt|input|sequence|seq|total)[\s_]*(?:sequence[\s_]*)?len(gth)?"
    r"|\b(prompt|inputs?|messages?|request)\b\W+(?:[\w.]+\W+){0,12}?(exceed\w*|longer than|greater than)"
    r"\W+(?:\w+\W+){0,8}?(tokens?|length)\b"
    r"|token count\W+(?:\w+\W+){0,8}?(exceeds|only supports)"
    r"|reduce the (?:length|size) of (?:the |your |either )?(messages?|prompt|inputs?|one)"
    r"|range of input length|token limit|tokens_limit|exceeds? the configured limit|exceeded model|exceed_context"
    r"|inputs`? tokens \+ `?max_new_tokens|current length is \d+ while limit",
    re.IGNORECASE,
)
_BOTH = [  # wordings with the context's size, and the prompt's or the whole request's
    rf"context length is (?:only )?(?P<context>{_N}) tokens?.*?\((?P<prompt>{_N}) (?:in|of|from) (?:the )?"
    r"(?:messages|prompt|text input|input)",
    rf"context length is (?P<context>{_N}) tokens and your (?:request|prompt) has (?P<prompt>{_N}) input",
    rf"context length is (?P<context>{_N}) tokens.*?prompt contains (?P<least>at least )?(?P<prompt>{_N}) (?:input )?t",
    rf"context length of (?P<context>{_N}) tokens.*?: (?P<prompt>{_N}) tokens from the input",
    rf"context limit: (?P<prompt>{_N}) \+ {_N} > (?P<context>{_N})",
    rf"must be <= (?P<context>{_N})\. given: (?P<prompt>{_N}) `?inputs",
    rf"prompt \((?P<prompt>{_N})\) and max_tokens \({_N}\) exceed the context of (?P<context>{_N})",
    rf"current length is (?P<total>{_N}) while limit is (?P<context>{_N})",
    rf"token limit: (?P<context>{_N}) \(requested: (?P<total>{_N})\)",
    rf"(?:context length|context window|context) (?:is|of) (?P<context>{_N}).*?(?P<least>max_tokens|output|completion)",
]
_MOST = [  # wordings with the most tokens that an answer may have
    rf"supports at most (?P<most>{_N}) (?:completion|output) tokens",
    rf"max_tokens: {_N} > (?P<most>{_N})",
    rf"maxoutputtokens value of {_N} but the supported range is from \d+ \(inclusive\) to (?P<above>{_N}) \(exclusive",
    rf"range of max_?(?:completion_|new_|output_)?tokens (?:is|should be) \[\d+, ?(?P<most>{_N})\]",
    rf"maximum tokens you requested exceeds the model limit of (?P<most>{_N})",
    rf"max_?(?:completion_|new_|output_)?tokens\b.{{0,60}}?(?:<=|at most|less than or equal to|no more than)"
    rf"\D{{0,3}}(?P<most>{_N})",
]
_ROOM = [re.compile(wording, re.IGNORECASE | re.DOTALL) for wording in (*_BOTH, *_MOST)]


@dataclass(frozen=True, slots=True)
class Room:
    """What the server says: tokens of the context, of the prompt, and the most that an answer may have.

    `at_least`: the prompt may be longer, as where the server has stopped counting.
    """

    context: int | None = None
    prompt: int | None = None
    most: int | None = None
    at_least: bool = False

    def left(self) -> int | None:
        """Tokens left for the answer; None where that is not known."""
        if self.most is not None or self.context is None:
            return self.most
        return None if self.prompt is None or self.at_least else max(0, self.context - self.prompt)


def is_overflow(text: str) -> bool:
    """Whether a server's words for a refused request say that it does not fit into the context."""
    return _RATE.search(text) is None and _OVERFLOW.search(text) is not None


def room_in(text: str, requested: int) -> Room | None:
    """The numbers in a refusal of a request for `requested` tokens; None where `max_tokens` is not what is refused."""
    for wording in _ROOM:
        if found := wording.search(text):
            texts = {name: text for name, text in found.groupdict().items() if text is not None}
            at_least = texts.pop("least", None) is not None
            number = {name: int(re.sub(r"\D", "", text)) for name, text in texts.items()}
            most = number["above"] - 1 if "above" in number else number.get("most")
            prompt = number["total"] - requested if "total" in number else number.get("prompt")
            return Room(number.get("context"), prompt, most, at_least)
    return None
