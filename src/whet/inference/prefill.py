"""In which order and company the prompts of newcomers are brought into the cache. Pure decisions."""

from __future__ import annotations

from typing import NamedTuple

from whet.inference.scheduler import Admission, LoadedAdapter

PREFILL_TOKENS = 8192
"""Padded tokens of one prefill pass at most."""


class Fill(NamedTuple):
    """Tokens to compute from position `start` of a slot on."""

    slot: int
    start: int
    tokens: list[int]
    adapter: LoadedAdapter | None


def fills_of(wave: list[Admission]) -> list[Fill]:
    """What is left to compute of each prompt: all but what is reused, and but the last token."""
    return [
        Fill(each.slot, each.reused, each.job.request.prompt_ids[each.reused : -1], each.job.adapter) for each in wave
    ]


def waves(admissions: list[Admission]) -> list[list[Admission]]:
    """Admissions in the order they must be filled: who copies from another newcomer comes a wave after it."""
    level: dict[int, int] = {}
    found: list[list[Admission]] = []
    for admission in admissions:
        wave = level.get(admission.donor, -1) + 1 if admission.donor is not None else 0
        level[admission.slot] = wave
        while len(found) <= wave:
            found.append([])
        found[wave].append(admission)
    return found


def prefill_batches(fills: list[Fill]) -> list[list[Fill]]:
    """Rows in batches of similar length, so that little is padding and little is held at once."""
    batches: list[list[Fill]] = []
    for fill in sorted((fill for fill in fills if fill.tokens), key=lambda fill: (-len(fill.tokens), fill.slot)):
        if batches:
            longest = len(batches[-1][0].tokens)
            fits = (len(batches[-1]) + 1) * longest <= PREFILL_TOKENS
            if fits and 4 * len(fill.tokens) + 32 >= 3 * longest:
                batches[-1].append(fill)
                continue
        batches.append([fill])
    return batches
