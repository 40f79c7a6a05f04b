"""What the report of a search shows, from its data: values of `search.html`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from whet.display.text import number
from whet.gepa.records.stored import BEST_PROMPT
from whet.gepa.records.summary_text import confirmation_words, headline, tested
from whet.gepa.report.data import ModelUsage, SearchReportData
from whet.gepa.report.drawings import scores, tree
from whet.gepa.text_diff import differences
from whet.gepa.types import CandidateRecord, Verdict
from whet.records.report import MOST_ROWS, ReportTable

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
    return {
        "title": search.title,
        "facts": list(_facts(data)),
        "ended": f"It ended because {search.reason}." if search.state == "finished" and search.reason else "",
        "unfinished": _unfinished(data),
        "stats": list(_stats(data)),
        "verdict": verdict,
        "meaning": meaning,
        "confirmation": list(confirmation_words(search)),
        "tone": TONES[sureness],
        "evaluate": search.evaluate,
        "prompt_file": data.directory / BEST_PROMPT,
        "best": best,
        "seed": seed,
        "against_seed": _difference(seed.texts, best.texts) if best is not None and seed is not None else {},
        "tree": tree(search.candidates, best),
        "scores": scores(search.candidates, search.max_calls, 1040, 260),
        "accepted": _candidates(data, "accepted"),
        "rejected": _candidates(data, "rejected"),
        "frontier": list(_frontier(data)),
        "hidden_examples": max(0, len(data.frontier) - MOST_ROWS),
        "unusable": ReportTable(
            "Answers that were of no use",
            ("to change", "component", "what was wrong", "the answer"),
            [
                ("" if one.candidate is None else str(one.candidate), one.component, one.why, one.answer)
                for one in data.unusable[:MOST_CANDIDATES]
            ],
            _left_out(len(data.unusable)),
            text=True,
        ),
        "costs": ReportTable(
            "Cost",
            ("of", "calls", "tokens in", "tokens out", "cost"),
            [
                _cost(f"rollouts: {search.model}", data.rollouts),
                _cost(f"reflection: {search.reflection_model}", data.reflection),
            ],
            "No prices are known for what has no cost here." if search.cost is None else "",
        ),
        "failed_calls": ReportTable(
            "Calls that failed", ("kind", "calls"), [(kind, f"{count:,}") for kind, count in data.errors.most_common()]
        ),
        "settings": json.dumps(dict(search.status), indent=2),
    }


def _facts(data: SearchReportData) -> Iterator[str]:
    search, plan = data.search, data.search.plan
    yield f"proposals from {search.reflection_model}"
    if plan:
        yield f"{plan.num_train:,} training, {plan.num_val:,} validation, {plan.num_held_out:,} held-out examples"
    yield search.date.replace("T", " ")


def _unfinished(data: SearchReportData) -> str:
    search = data.search
    if search.state == "finished":
        return ""
    state = f"It has not ended: {search.state}" + (f" ({search.reason})." if search.reason else ".")
    return f"{state} To go on: {search.resume}" if search.resume else state


def _stats(data: SearchReportData) -> Iterator[tuple[str, str, str]]:
    """(what it is, the number, a note) of the headline numbers."""
    search = data.search
    best, seed = search.best, search.seed
    if best is not None:
        of_seed = f"the seed {number(seed.val_mean)}" if seed is not None and seed is not best else ""
        yield "best prompt on validation", number(best.val_mean), of_seed
    if search.max_calls is not None:
        yield "calls spent", f"{search.spent:,}", f"of {search.max_calls:,}"
    yield "proposals accepted", f"{search.count('accepted'):,}", f"{search.count('rejected'):,} rejected"
    yield "answers of no use", f"{len(data.unusable):,}", "of the reflection model"
    if data.errors:
        yield "calls failed", f"{data.errors.total():,}", "and count as reward 0"
    if search.cost is not None:
        yield "cost", f"${search.cost:.4f}", "of all calls and reflections"


def _candidates(data: SearchReportData, wanted: Verdict) -> dict[str, Any]:
    """Those with this verdict, each with how it came about and what it changed."""
    found = [one for one in data.search.candidates if one.verdict == wanted]
    shown = [_candidate(data, one) for one in found[:MOST_CANDIDATES]]
    return {"shown": shown, "left_out": _left_out(len(found))}


def _left_out(count: int) -> str:
    hidden = count - MOST_CANDIDATES
    return f"{hidden:,} more are left out here; candidates.jsonl has them all." if hidden > 0 else ""


def _candidate(data: SearchReportData, one: CandidateRecord) -> dict[str, Any]:
    known = data.search.by_id
    parents = [known[id] for id in one.parents if id in known]
    from_ = f"from {', '.join(str(parent.number) for parent in parents)}" if parents else ""
    score = f"{number(one.val_mean)} on validation" if one.val_mean is not None else ""
    return {
        "number": one.number,
        "facts": f"{', '.join(filter(None, (from_, score)))}: {one.reason}",
        "tested": "; ".join(tested(one)),
        "texts": one.texts,
        "difference": _difference(parents[0].texts, one.texts) if parents else None,
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


def _frontier(data: SearchReportData) -> Iterator[dict[str, Any]]:
    """The validation examples, those with the lowest rewards first."""
    compared = [one for one in (data.search.seed, data.search.best) if one is not None]
    if len(compared) == 2 and compared[0] is compared[1]:
        compared.pop()
    for line in sorted(data.frontier, key=lambda line: line.reward)[:MOST_ROWS]:
        yield {
            "example": line.example.partition("/")[2],
            "question": data.questions.get(line.example, ""),
            "reward": line.reward,
            "numbers": line.numbers,
            "compared": [one.val_rewards.get(line.example) for one in compared],
        }


def _cost(name: str, usage: ModelUsage) -> tuple[str, ...]:
    cost = "-" if usage.cost is None else f"${usage.cost:.4f}"
    return name, f"{usage.calls:,}", f"{usage.input_tokens:,.0f}", f"{usage.output_tokens:,.0f}", cost
