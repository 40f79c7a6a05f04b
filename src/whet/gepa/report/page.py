"""The report of a search as one HTML page, from its data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from whet.display.html import SORT_SCRIPT, Html, document, join, tag
from whet.display.text import number
from whet.gepa.records.stored import BEST_PROMPT
from whet.gepa.records.summary_text import confirmation_words, headline, tested
from whet.gepa.report.data import ModelUsage, SearchReportData
from whet.gepa.report.drawings import lineage_svg, scores_svg
from whet.gepa.report.prompts import difference_html, prompts_html
from whet.gepa.types import CandidateRecord, Verdict
from whet.runs.report import (
    MOST_ROWS,
    error,
    head,
    number_cell,
    sample,
    section,
    settings,
    small,
    sortable_table,
    table,
    verdict,
)

MOST_CANDIDATES = 200
"""Candidates that are shown with what they changed, of those accepted and of those rejected."""
COLOURS = {"good": "c2", "unsure": "c4", "bad": "c1"}
STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def page(data: SearchReportData) -> str:
    """The whole document."""
    return document(data.search.title, sections(data), style=STYLE, script=SORT_SCRIPT)


def sections(data: SearchReportData) -> list[Html]:
    """What the document shows, for a page of another program too."""
    return [
        _head(data),
        _verdict(data),
        _next(data),
        _best(data),
        _lineage(data),
        _candidates(data, "accepted", "Accepted candidates", most_opened=3),
        _frontier(data),
        _candidates(data, "rejected", "Rejected proposals", "Each with the reason, and what it would have changed."),
        _unusable(data),
        _effort(data),
        settings("Settings", "metadata.json", json.dumps(dict(data.search.status), indent=2)),
    ]


def _head(data: SearchReportData) -> Html:
    search = data.search
    plan = search.plan
    facts = [
        f"proposals from {search.reflection_model}",
        f"{plan.num_train:,} training, {plan.num_val:,} validation, {plan.num_held_out:,} held-out examples"
        if plan
        else "",
        search.date.replace("T", " "),
    ]
    ended = f"It ended because {search.reason}." if search.state == "finished" and search.reason else ""
    unfinished = ""
    if search.state != "finished":
        unfinished = f"It has not ended: {search.state}" + (f" ({search.reason})." if search.reason else ".")
        unfinished += f" To go on: {search.resume}" if search.resume else ""
    notes = [tag("p", ended, class_="sub") if ended else join(), error(unfinished)]
    return head(search.title, facts, _tiles(data), *notes)


def _tiles(data: SearchReportData) -> Iterator[tuple[str, str]]:
    search = data.search
    best, seed = search.best, search.seed
    if best is not None:
        of_seed = f", the seed {number(seed.val_mean)}" if seed is not None and seed is not best else ""
        yield f"mean reward on validation of the best prompt{of_seed}", number(best.val_mean)
    if search.max_calls is not None:
        yield f"calls of {search.max_calls:,} were spent", f"{search.spent:,}"
    accepted, rejected = search.count("accepted"), search.count("rejected")
    yield f"proposals were accepted, {rejected:,} rejected", f"{accepted:,}"
    yield "answers of the reflection model were of no use", f"{len(data.unusable):,}"
    if data.errors:
        yield "calls failed and count as reward 0", f"{data.errors.total():,}"
    if search.cost is not None:
        yield "for all calls and reflections", f"${search.cost:.4f}"


def _verdict(data: SearchReportData) -> Html:
    title, words, sureness = headline(data.search)
    return verdict(title, f" {words}" if words else "", confirmation_words(data.search), COLOURS[sureness])


def _next(data: SearchReportData) -> Html:
    """The command that evaluates the best prompt, to be copied: one for each environment."""
    return section(
        "Use it",
        *(tag("div", tag("pre", command), class_="command") for command in data.search.evaluate),
        note=f"The best prompt is in {data.directory / BEST_PROMPT}. To evaluate it:",
    )


def _best(data: SearchReportData) -> Html:
    best, seed = data.search.best, data.search.seed
    if best is None or seed is None:
        return small("No candidate has been validated yet.")
    prompt = tag("div", prompts_html(best.texts), class_="prompt")
    if best is seed:
        return section("The seed prompt, still the best", prompt)
    difference = difference_html(seed.texts, best.texts)
    return section(f"The best prompt: candidate {best.number}", prompt, tag("h3", "Against the seed"), difference)


def _lineage(data: SearchReportData) -> Html:
    search = data.search
    tree, scores = lineage_svg(search.candidates, search.best), scores_svg(search.candidates, search.max_calls)
    note = (
        "Left to right: which candidate was made from which, with means on validation; the way to the best is marked."
    )
    over = "Filled: the seed and what was accepted. Hollow: validated and rejected. The line is the best so far."
    if not tree:
        return join()
    return join(
        section("Lineage", tag("div", tree, class_="scroll"), small(note)),
        section("Scores over calls", scores, small(over) if scores else join()),
    )


def _candidates(data: SearchReportData, wanted: Verdict, title: str, note: str = "", most_opened: int = 0) -> Html:
    """Those with this verdict, each with how it came about and what it changed."""
    found = [one for one in data.search.candidates if one.verdict == wanted]
    opened = len(found) <= most_opened
    shown = [_candidate(data, one, opened) for one in found[:MOST_CANDIDATES]]
    return section(title, *shown, _left_out(len(found) - MOST_CANDIDATES), note=note)


def _left_out(count: int) -> Html:
    note = f"{count:,} more are left out here; candidates.jsonl has them all."
    return small(note if count > 0 else "")


def _candidate(data: SearchReportData, one: CandidateRecord, opened: bool) -> Html:
    known = data.search.by_id
    parents = [known[id] for id in one.parents if id in known]
    from_ = f" from {', '.join(str(parent.number) for parent in parents)}" if parents else ""
    score = f", {number(one.val_mean)} on validation" if one.val_mean is not None else ""
    return sample(
        f"candidate {one.number}",
        f"{from_}{score}: {one.reason}",
        small("; ".join(tested(one))),
        difference_html(parents[0].texts, one.texts) if parents else prompts_html(one.texts),
        opened=opened,
    )


def _frontier(data: SearchReportData) -> Html:
    if not data.frontier:
        return join()
    best, seed = data.search.best, data.search.seed
    heads = ["example", "question", "best reward", "candidates with it", "seed"]
    if best is not None and best is not seed:
        heads.append(f"candidate {best.number}")
    compared = [one for one in (seed, best) if one is not None][: len(heads) - 4]
    shown = sorted(data.frontier, key=lambda line: line.reward)[:MOST_ROWS]
    rows = [
        [
            tag("td", line.example.partition("/")[2]),
            tag("td", data.questions.get(line.example, "")),
            number_cell(line.reward),
            tag("td", ", ".join(map(str, line.numbers)), data_value=str(len(line.numbers))),
            *(number_cell(one.val_rewards.get(line.example)) for one in compared),
        ]
        for line in shown
    ]
    hidden = len(data.frontier) - len(rows)
    left_out = f"{hidden:,} examples with higher rewards are left out here; pareto_frontier.jsonl has them all. "
    note = f"{left_out if hidden else ''}Lowest reward first; a column's head sorts by it."
    return section("Who is best on which validation example", sortable_table(heads, rows), note=note)


def _unusable(data: SearchReportData) -> Html:
    rows = [
        ("" if one.candidate is None else str(one.candidate), [one.component, one.why, one.answer])
        for one in data.unusable[:MOST_CANDIDATES]
    ]
    return section(
        "Answers that were of no use",
        table(("to change", "component", "what was wrong", "the answer"), rows, text=True),
        _left_out(len(data.unusable) - MOST_CANDIDATES),
    )


def _effort(data: SearchReportData) -> Html:
    search = data.search
    used = (f"rollouts: {search.model}", data.rollouts), (f"reflection: {search.reflection_model}", data.reflection)
    rows = [
        (name, [f"{usage.calls:,}", f"{usage.input_tokens:,.0f}", f"{usage.output_tokens:,.0f}", _dollars(usage)])
        for name, usage in used
    ]
    kinds = [(kind, [f"{count:,}"]) for kind, count in data.errors.most_common()]
    return section(
        "Cost",
        table(("of", "calls", "tokens in", "tokens out", "cost"), rows),
        small("No prices are known for what has no cost here." if search.cost is None else ""),
        *([tag("h3", "Calls that failed"), table(("kind", "calls"), kinds)] if kinds else []),
    )


def _dollars(usage: ModelUsage) -> str:
    return "-" if usage.cost is None else f"${usage.cost:.4f}"
