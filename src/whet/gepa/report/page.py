"""What the report of a search shows, from its data: values of `search.html`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from whet.gepa.records.stored import BEST_PROMPT
from whet.gepa.records.summary_text import confirmation_words, headline, tested
from whet.gepa.report.data import SearchReportData
from whet.gepa.report.drawings import scores, tree
from whet.gepa.text_diff import differences
from whet.records.report import MOST_ROWS

TEMPLATE = "search.html"
MOST_CANDIDATES = 200
"""Candidates that are shown with what they changed, of those accepted and of those rejected."""
MOST_LINES = 400
"""Lines of a difference that are shown."""
LONGEST_LINE = 4000
TONES = {"good": "ok", "unsure": "warning", "bad": "error"}


def values(data: SearchReportData) -> dict[str, Any]:
    """What the template needs."""
    search = data.search
    verdict, meaning, sureness = headline(search)
    best, seed = search.best, search.seed
    by_verdict = {one: [c for c in search.candidates if c.verdict == one] for one in ("accepted", "rejected")}
    return {
        "data": data,
        "search": search,
        "best": best,
        "seed": seed,
        "verdict": verdict,
        "meaning": meaning,
        "confirmation": list(confirmation_words(search)),
        "tone": TONES[sureness],
        "prompt_file": data.directory / BEST_PROMPT,
        "tree": tree(search.candidates, best),
        "scores": scores(search.candidates, search.max_calls, 1040, 260),
        "candidates": by_verdict,
        "most_candidates": MOST_CANDIDATES,
        "frontier": sorted(data.frontier, key=lambda line: line.reward)[:MOST_ROWS],
        "compared": [] if seed is None or best is None else [seed] if best is seed else [seed, best],
        "settings": json.dumps(dict(search.status), indent=2),
        "parents_of": lambda one: [search.by_id[id] for id in one.parents if id in search.by_id],
        "difference": _difference,
        "tested": tested,
    }


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """What differs, by component: lines with their pieces, which say whether they are marked; the first of many."""
    return {
        name: [
            *({"kind": line.kind, "pieces": list(_at_most(line.pieces))} for line in lines[:MOST_LINES]),
            *(
                [{"kind": "hidden", "pieces": [(f"{len(lines) - MOST_LINES:,} more lines …", False)]}]
                if len(lines) > MOST_LINES
                else []
            ),
        ]
        for name, lines in differences(before, after).items()
    }


def _at_most(pieces: tuple[tuple[str, bool], ...]) -> Iterator[tuple[str, bool]]:
    """The pieces of a line to its longest length; one piece alone is not marked, the whole line is."""
    left = LONGEST_LINE
    for text, changed in pieces:
        hidden = len(text) - left
        yield f"{text[:left]}… ({hidden:,} more characters)" if hidden > 0 else text, changed and len(pieces) > 1
        left -= len(text)
        if left < 0:
            return
