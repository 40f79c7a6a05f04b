"""`whet gepa list` and `show` in the terminal. Text from models is made safe to print."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from whet.display.text import number, print_fact, print_rows
from whet.errors import RunError
from whet.gepa.records.stored import BEST_PROMPT, StoredSearch, confirmation_words, headline, tested
from whet.gepa.text_diff import DiffLine, differences, whole
from whet.gepa.types import CandidateRecord
from whet.records.directory import REPORT
from whet.records.stored import print_list
from whet.system.terminal import safe_lines, safe_text

RIGHT = {"calls", "proposals", "accepted", "seed", "best", "number", "validation", "p"}
"""Columns of numbers."""
SHOWN = (
    "name",
    "date",
    "state",
    "reason",
    "environments",
    "model",
    "reflection_model",
    "max_calls",
    "cost",
    "resume",
    "fault",
)
"""What a record for programs has of a search as it is."""
NAME, REASON = 40, 70
SIGNS = {"same": ("  ", "dim"), "gone": ("- ", "red"), "new": ("+ ", "green"), "hidden": ("  ... ", "dim")}


def print_heads(searches: Sequence[StoredSearch], console: Console) -> None:
    """The list of saved searches; then how to continue those that did not end."""
    rows = [_head_cells(one) for one in searches]
    print_list(rows, RIGHT, ((one.fault, one.resume) for one in searches), console)


def head(search: StoredSearch) -> dict[str, Any]:
    """A search as a record for programs."""
    best, seed, confirmation = search.best, search.seed, search.confirmation
    return {
        **{name: getattr(search, name) for name in SHOWN},
        "directory": str(search.directory),
        "calls": search.spent,
        "accepted": search.count("accepted"),
        "rejected": search.count("rejected"),
        "best": best.number if best else None,
        "best_validation": best.val_mean if best else None,
        "seed_validation": seed.val_mean if seed else None,
        "confirmation": dataclasses.asdict(confirmation) if confirmation else None,
    }


def _head_cells(search: StoredSearch) -> dict[str, str]:
    best, seed = search.best, search.seed
    most = f"/{search.max_calls}" if search.max_calls is not None else ""
    confirmation = search.confirmation
    return {
        "date": search.date[:16].replace("T", " "),
        "name": safe_text(search.name, NAME),
        "environment": safe_text(", ".join(search.environments), NAME),
        "model": safe_text(search.model, NAME),
        "state": "" if search.state == "finished" else safe_text(search.state, NAME),
        "calls": f"{search.spent}{most}" if search.fault is None else "",
        "proposals": str(search.count("accepted") + search.count("rejected")),
        "accepted": str(search.count("accepted")),
        "seed": number(seed.val_mean) if seed else "",
        "best": number(best.val_mean) if best else "",
        "held-out": f"{confirmation.difference:+.3f} ({confirmation.low:+.3f} to {confirmation.high:+.3f})"
        if confirmation
        else "",
    }


def print_search(search: StoredSearch, console: Console, candidate: int | None = None) -> None:
    """A search in full: what was found, every candidate, and what the best one (or `candidate`) changed.

    Raises `RunError` where there is no such candidate.
    """
    shown = search.best if candidate is None else _candidate(search, candidate)
    print_result_of(search, console)
    if search.candidates:
        console.print()
        print_rows([_candidate_cells(search, one) for one in search.candidates], console, RIGHT)
    if shown is not None:
        console.print()
        print_candidate(search, shown, console)


def print_result_of(search: StoredSearch, console: Console, resume: str | None = None) -> None:
    """What was found, and the commands that use or continue the search; `resume` is in place of its own."""
    for label, text in _result_of(search, resume or search.resume):
        print_fact(label, text, console, fold=label not in ("evaluate", "continue", "report", "prompt"))


def _result_of(search: StoredSearch, resume: str | None) -> Iterator[tuple[str, str]]:
    """(label, text) for everything known; an empty label continues the line before."""
    yield "search", f"{safe_text(search.title)}, proposals from {safe_text(search.reflection_model, NAME)}"
    reason = f": {safe_text(search.reason)}" if search.reason else ""
    yield "state", f"{search.state}{reason}"
    most = f" of {search.max_calls:,}" if search.max_calls is not None else ""
    cost = f", ${search.cost:.4f}" if search.cost is not None else ""
    accepted = search.count("accepted")
    decided = accepted + search.count("rejected")
    yield "calls", f"{search.spent:,}{most}{cost}; {accepted} of {decided} proposals accepted"
    title, words, _ = headline(search)
    yield "found", f"{title} {words}".strip()
    for line in confirmation_words(search):
        yield "", line
    if (search.directory / BEST_PROMPT).is_file():
        yield "prompt", str(search.directory / BEST_PROMPT)
    for command in search.evaluate:
        yield "evaluate", safe_text(command, 4000)
    if (search.directory / REPORT).is_file():
        yield "report", str(search.directory / REPORT)
    if resume is not None:
        yield "continue", resume


def print_candidate(search: StoredSearch, one: CandidateRecord, console: Console) -> None:
    """How a candidate was tested, and its texts: against those of its parent, or whole where it has none."""
    known = search.by_id
    parent = next((known[id] for id in one.parents if id in known), None)
    print_fact("candidate", f"{one.number}, {one.verdict}: {safe_text(one.reason)}", console)
    print_fact("", "; ".join(tested(one)), console)
    if parent is None:
        lines_by_name = {name: whole(text) for name, text in one.texts.items()}
    else:
        print_fact("", f"against candidate {parent.number}, which it was made from:", console)
        lines_by_name = differences(parent.texts, one.texts)
    for name, lines in lines_by_name.items():
        if len(one.texts) > 1:
            console.print(Text(safe_text(name), "bold"))
        for line in lines:
            console.print(Text.assemble(SIGNS[line.kind], _diff_text(line)), soft_wrap=True)


def _diff_text(line: DiffLine) -> Text:
    """A line of a difference; the words that differ stand out in it."""
    text = Text(style=SIGNS[line.kind][1])
    for piece, changed in line.pieces:
        shown = " ".join(safe_lines(piece))
        text.append(shown, "bold underline" if changed and len(line.pieces) > 1 else "")
    return text


def _candidate_cells(search: StoredSearch, one: CandidateRecord) -> Mapping[str, str]:
    known = search.by_id
    best = search.best
    return {
        "": "*" if best is not None and one.number == best.number else "",
        "number": str(one.number),
        "from": ", ".join(str(known[id].number) for id in one.parents if id in known),
        "verdict": one.verdict,
        "validation": number(one.val_mean) if one.val_mean is not None else "",
        "p": f"{one.p_value:.3g}" if one.p_value is not None else "",
        "calls": str(one.calls_after - one.calls_before),
        "reason": safe_text(one.reason, REASON),
    }


def _candidate(search: StoredSearch, wanted: int) -> CandidateRecord:
    for one in search.candidates:
        if one.number == wanted:
            return one
    there = f"there are 0 to {search.candidates[-1].number}" if search.candidates else "there is none yet"
    raise RunError(f"{search.directory}: there is no candidate {wanted}; {there}.")
