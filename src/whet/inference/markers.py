"""A tokenizer that knows the markers of a format by heart.

The `renderers` package looks up the same few short texts (`<|im_start|>assistant` and its like) for every answer that
it reads. That was a fifth of the time that a run's own process takes while an engine and a learner work beside it.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

LONGEST = 64
"""Characters of a text that is taken for a marker."""


def knowing_markers(tokenizer: Any) -> Any:
    """The same tokenizer, whose `encode` looks short texts up only once; the one that is given stays as it is."""
    encode = tokenizer.encode

    @lru_cache(maxsize=4096)
    def known(text: str, special: bool) -> tuple[int, ...]:
        return tuple(encode(text, add_special_tokens=special))

    def encode_once(text: Any, *args: Any, **options: Any) -> Any:
        if isinstance(text, str) and len(text) <= LONGEST and not args and options.keys() == {"add_special_tokens"}:
            return list(known(text, bool(options["add_special_tokens"])))
        return encode(text, *args, **options)

    knowing = copy.copy(tokenizer)
    knowing.encode = encode_once
    return knowing
