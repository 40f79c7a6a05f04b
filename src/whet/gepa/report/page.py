"""The report of a search as one HTML page, from its data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from whet.display.conversation import cut
from whet.display.document import SORT_SCRIPT, document
from whet.display.html import Html, join, tag
from whet.display.text import number
from whet.gepa.records.stored import BEST_PROMPT
from whet.gepa.records.summary_text import confirmation_words, headline, tested
from whet.gepa.report.data import ModelUsage, SearchReportData
from whet.gepa.report.drawings import lineage_svg, scores_svg
from whet.gepa.report.prompts import difference_html, prompts_html
from whet.gepa.types import CandidateRecord

MOST_EXAMPLES = 1000
"""Rows of the table of validation examples."""
MOST_CANDIDATES = 200
"""Candidates that are shown with what they changed, of those accepted and of those rejected."""
COLOURS = {"good": "c2", "unsure": "c4", "bad": "c1"}
STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def page(data: SearchReportData) -> str:
    """The whole document."""
    body = [
        _head(data),
        _verdict(data),
        _next(data),
        _best(data),
        _lineage(data),
        _accepted(data),
        _frontier(data),
        _rejected(data),
        _unusable(data),
        _effort(data),
        tag("h2", "Settings"),
        tag(
            "details",
            tag("summary", "metadata.json"),
            tag("pre", cut(json.dumps(dict(data.search.status), indent=2), 20_000)),
        ),
    ]
    search = data.search
    return document(search.title, body, style=STYLE, script=SORT_SCRIPT)


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
    tiles = [tag("div", tag("b", value), tag("span", label), class_="tile") for label, value in _tiles(data)]
    return join(
        tag("h1", search.title),
        tag("p", ", ".join(fact for fact in facts if fact), class_="sub"),
        tag("p", ended, class_="sub") if ended else join(),
        tag("p", unfinished, class_="error") if unfinished else join(),
        tag("div", *tiles, class_="tiles"),
    )


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
    lines = [tag("li", line) for line in confirmation_words(data.search)]
    return tag(
        "div", tag("b", title), f" {words}" if words else "", tag("ul", *lines), class_=f"verdict {COLOURS[sureness]}"
    )


def _next(data: SearchReportData) -> Html:
    """The command that evaluates the best prompt, to be copied: one for each environment."""
    if not data.search.evaluate:
        return join()
    return join(
        tag("h2", "Use it"),
        tag("p", f"The best prompt is in {data.directory / BEST_PROMPT}. To evaluate it:", class_="note"),
        *(tag("div", tag("pre", command), class_="command") for command in data.search.evaluate),
    )


def _best(data: SearchReportData) -> Html:
    best, seed = data.search.best, data.search.seed
    if best is None or seed is None:
        return tag("p", "No candidate has been validated yet.", class_="note")
    if best is seed:
        return join(tag("h2", "The seed prompt, still the best"), tag("div", prompts_html(best.texts), class_="prompt"))
    return join(
        tag("h2", f"The best prompt: candidate {best.number}"),
        tag("div", prompts_html(best.texts), class_="prompt"),
        tag("h3", "Against the seed"),
        difference_html(seed.texts, best.texts),
    )


def _lineage(data: SearchReportData) -> Html:
    search = data.search
    tree, scores = lineage_svg(search.candidates, search.best), scores_svg(search.candidates, search.max_calls)
    if not tree:
        return join()
    note = (
        "Left to right: which candidate was made from which, with means on validation; the way to the best is marked."
    )
    over = "Filled: the seed and what was accepted. Hollow: validated and rejected. The line is the best so far."
    return join(
        tag("h2", "Lineage"),
        tag("div", tree, class_="scroll"),
        tag("p", note, class_="note"),
        *([tag("h2", "Scores over calls"), scores, tag("p", over, class_="note")] if scores else []),
    )


def _accepted(data: SearchReportData) -> Html:
    found = [one for one in data.search.candidates if one.verdict == "accepted"]
    if not found:
        return join()
    return join(
        tag("h2", "Accepted candidates"),
        *(_candidate(data, one, opened=len(found) <= 3) for one in found[:MOST_CANDIDATES]),
        _left_out(len(found) - MOST_CANDIDATES),
    )


def _rejected(data: SearchReportData) -> Html:
    found = [one for one in data.search.candidates if one.verdict == "rejected"]
    if not found:
        return join()
    return join(
        tag("h2", "Rejected proposals"),
        tag("p", "Each with the reason, and what it would have changed.", class_="note"),
        *(_candidate(data, one) for one in found[:MOST_CANDIDATES]),
        _left_out(len(found) - MOST_CANDIDATES),
    )


def _left_out(count: int) -> Html:
    note = f"{count:,} more are left out here; candidates.jsonl has them all."
    return tag("p", note, class_="note") if count > 0 else join()


def _candidate(data: SearchReportData, one: CandidateRecord, opened: bool = False) -> Html:
    """One candidate: how it came about, what was measured, what it changed."""
    known = data.search.by_id
    parents = [known[id] for id in one.parents if id in known]
    from_ = f" from {', '.join(str(parent.number) for parent in parents)}" if parents else ""
    score = f", {number(one.val_mean)} on validation" if one.val_mean is not None else ""
    return tag(
        "details",
        tag("summary", tag("b", f"candidate {one.number}"), tag("span", f"{from_}{score}: {one.reason}")),
        tag("p", "; ".join(tested(one)), class_="note"),
        difference_html(parents[0].texts, one.texts) if parents else prompts_html(one.texts),
        class_="sample",
        open="" if opened else None,
    )


def _frontier(data: SearchReportData) -> Html:
    if not data.frontier:
        return join()
    best, seed = data.search.best, data.search.seed
    heads = ["example", "question", "best reward", "candidates with it", "seed"]
    if best is not None and best is not seed:
        heads.append(f"candidate {best.number}")
    rows = []
    for line in sorted(data.frontier, key=lambda line: line.reward)[:MOST_EXAMPLES]:
        rewards = [one.val_rewards.get(line.example) for one in (seed, best) if one is not None][: len(heads) - 4]
        rows.append(
            tag(
                "tr",
                tag("td", line.example.partition("/")[2]),
                tag("td", data.questions.get(line.example, "")),
                _cell(line.reward),
                tag("td", ", ".join(map(str, line.numbers)), data_value=str(len(line.numbers))),
                *(_cell(reward) for reward in rewards),
            )
        )
    hidden = len(data.frontier) - len(rows)
    left_out = f"{hidden:,} examples with higher rewards are left out here; pareto_frontier.jsonl has them all. "
    note = left_out if hidden else ""
    head = tag("thead", tag("tr", *(tag("th", tag("button", name, type="button"), scope="col") for name in heads)))
    return join(
        tag("h2", "Who is best on which validation example"),
        tag("p", f"{note}Lowest reward first; a column's head sorts by it.", class_="note"),
        tag("div", tag("table", head, tag("tbody", *rows), class_="tasks"), class_="scroll"),
    )


def _cell(value: float | None) -> Html:
    """A reward, with all its digits for sorting."""
    return tag("td", number(value), data_value="" if value is None else f"{value:.9g}")


def _unusable(data: SearchReportData) -> Html:
    if not data.unusable:
        return join()
    rows = [
        (
            "" if one.candidate is None else str(one.candidate),
            [one.component, one.why, one.answer],
        )
        for one in data.unusable[:MOST_CANDIDATES]
    ]
    return join(
        tag("h2", "Answers that were of no use"),
        _table(("to change", "component", "what was wrong", "the answer"), rows, text=True),
        _left_out(len(data.unusable) - MOST_CANDIDATES),
    )


def _effort(data: SearchReportData) -> Html:
    rows = [
        (name, [f"{usage.calls:,}", f"{usage.input_tokens:,.0f}", f"{usage.output_tokens:,.0f}", _dollars(usage)])
        for name, usage in ((data.search.model, data.rollouts), (data.search.reflection_model, data.reflection))
    ]
    names = ("rollouts", "reflection")
    named = [(f"{name}: {model}", cells) for name, (model, cells) in zip(names, rows, strict=True)]
    parts = [tag("h2", "Cost"), _table(("", "calls", "tokens in", "tokens out", "cost"), named)]
    if data.search.cost is None:
        parts.append(tag("p", "No prices are known for what has no cost here.", class_="note"))
    if data.errors:
        kinds = [(kind, [f"{count:,}"]) for kind, count in data.errors.most_common()]
        parts += [tag("h3", "Calls that failed"), _table(("kind", "calls"), kinds)]
    return join(*parts)


def _dollars(usage: ModelUsage) -> str:
    return "-" if usage.cost is None else f"${usage.cost:.4f}"


def _table(heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], text: bool = False) -> Html:
    kind = "text" if text else None
    head = tag("thead", tag("tr", *(tag("th", name, class_=kind) for name in heads)))
    lines = [tag("tr", tag("td", name), *(tag("td", cell, class_=kind) for cell in cells)) for name, cells in rows]
    return tag("div", tag("table", head, tag("tbody", *lines)), class_="scroll")
