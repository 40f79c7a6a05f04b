"""One rollout: its conversation, its scores, its tokens, and the way to the next one of the list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from whet.dashboard.call import Call, DashboardCall, Number, RunId, Words
from whet.dashboard.data.rollouts import ShownRollout, read_rollout
from whet.dashboard.data.stores import OpenStore
from whet.dashboard.data.tokens import tokens_of
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun
from whet.dashboard.pages.rendering import PageRoute, address, render, run_path
from whet.dashboard.pages.rollouts.listing import Listed, ListQuery
from whet.errors import RunError
from whet.records import rollout_text
from whet.records.branches import Branch, BranchTree, Segment, branch_tree
from whet.records.heads import Head
from whet.records.listing import origin
from whet.records.rollout_text import conversation, details, number
from whet.records.tokens import LIKELY, Colouring, Token, TokenView, colourings, describe, likely_style

router = APIRouter(route_class=PageRoute)
MOST_SCORES = 6
"""Metrics that are shown large; the details have all."""
RAW = 20_000
"""Characters that are shown of a line that is no rollout."""
WINDOW = 4_000
"""Tokens that a page has at once."""
VERSIONS = 4
"""Colours of policy versions."""
LEGEND = [(f"p-{style or 'even'}", name) for _, name, style in LIKELY]
"""(class, from which probability on) of the shading by probability."""
Position = Annotated[int | None, Query(ge=0, le=10**15)]


@router.get("/runs/{run}/rollouts/{number}")
def rollout_page(
    request: Request,
    call: Call,
    run: RunId,
    number: Number,
    query: Listed,
    at: Position = None,
    token: Position = None,
    shade: Words = "",
) -> Response:
    """`at`: the position in the list that the other values of the URL name."""
    library_run = call.run(run)
    here = f"{run_path(request, library_run)}/rollouts"
    with call.data.stores.use(library_run) as opened:
        shown, problem = _read(opened, number)
        head, row = shown.head, shown.row
        view, without_text = _tokens(call, library_run, shown)
        values: dict[str, Any] = {
            "raw": opened.store.text(number, RAW) if problem else "",
            "group_size": len(shown.group),
            **_neighbours(opened, query, here, number, at),
        }
    page = token_page(view, token, shade)
    row_with_tokens = row if shown.turns is None else {**row, "turns": shown.turns}
    own = {**query.listed, "at": at}
    return render(
        request,
        "rollout.html",
        **values,
        run=library_run,
        number=number,
        head=head,
        where=origin(head),
        passed=shown.passed,
        write=rollout_text,
        scores=_scores(row),
        errors=_errors(row, head),
        problem=problem,
        conversation=conversation(row),
        details=details(row, head, shown.passed) if row else {},
        list_link=address(here, query.listed),
        group_link=f"{run_path(request, library_run)}/groups/{number}",
        tokens=page,
        tree=tree_page(branch_tree(row_with_tokens), head.part),
        legend=LEGEND,
        without_text=without_text,
        shade_links=[
            (way, address(f"{here}/{number}", {**own, "shade": way, "token": page.selected}) + "#tokens")
            for way in page.colourings
        ],
        token_link=address(f"{here}/{number}", {**own, "shade": shade, "token": "0"})[:-1],
        token_stop=page.selected if page.selected is not None else page.first,
        window_links=[
            (label, address(f"{here}/{number}", {**own, "shade": shade, "token": first}) + "#tokens")
            for label, first in (("before", page.before), ("after", page.after))
            if first is not None
        ],
    )


def _read(opened: OpenStore, number: int) -> tuple[ShownRollout, str]:
    """The rollout, and why its line is none: then only its text is shown."""
    try:
        return read_rollout(opened, number), ""
    except (RunError, DashboardError) as error:
        head = opened.store.head(number)
        if not head.problem or not head.line:
            raise
        return ShownRollout("", head, {}, None, [], opened.passed, False), str(error).rpartition(": ")[2]


def _scores(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the reward functions returned."""
    metrics = row.get("metrics")
    shown = [
        (str(name)[:60], number(float(value)))
        for name, value in (metrics.items() if isinstance(metrics, Mapping) else ())
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "num_turns"
    ]
    return shown[:MOST_SCORES]


def _errors(row: Mapping[str, Any], head: Head) -> list[str]:
    """The error of a rollout, then its causes."""
    causes = [value[:2000] for _, value, _ in details(row, head, 0.0).get("error", [])]
    return [head.error, *causes] if head.error else []


def _neighbours(opened: OpenStore, query: ListQuery, here: str, number: int, at: int | None) -> dict[str, str | None]:
    """Links to the rollouts before and after: in the list that the reader came from, else by their numbers."""
    links: dict[str, str | None] = {"previous_link": None, "next_link": None}
    if at is None:
        for name, other in (("previous_link", number - 1), ("next_link", number + 1)):
            if other >= 0 and opened.store.head(other).line:
                links[name] = f"{here}/{other}"
        return links
    first, filter = max(0, at - 1), query.filter
    if query.search:
        filter = replace(filter, numbers=frozenset(opened.search(query.search).numbers))
    near = opened.store.page(filter, query.sort, first, at + 2 - first)
    for name, position in (("previous_link", at - 1), ("next_link", at + 1)):
        if 0 <= position - first < len(near):
            links[name] = address(f"{here}/{near[position - first]}", {**query.listed, "at": position})
    return links


def _tokens(call: DashboardCall, run: LibraryRun, shown: ShownRollout) -> tuple[TokenView, str]:
    """The tokens, and why they have no text."""
    decode, note = call.data.tokenizers.of(run) if shown.turns else (None, None)
    try:
        return tokens_of(shown, decode), note or ""
    except RunError as error:
        return TokenView([], None, str(error)), ""


# The tokens of a rollout as its page shows them: a window of them, shaded, with one that is selected.


@dataclass(frozen=True, slots=True)
class PageToken:
    """A token and how it is marked."""

    index: int
    text: str
    classes: str
    words: str  # what is known of it, in a line
    breaks: int  # lines that end with it


@dataclass(frozen=True, slots=True)
class PageTurn:
    """A turn, or that part of it which is in the window."""

    heading: str
    note: str
    tokens: list[PageToken]


@dataclass(frozen=True, slots=True)
class TokenPage:
    """A window of a rollout's tokens."""

    turns: list[PageTurn]
    count: int  # of all tokens
    first: int
    last: int  # exclusive
    colouring: Colouring
    colourings: list[Colouring]
    selected: int | None
    facts: list[str]  # of the selected token
    note: str = ""

    @property
    def before(self) -> int | None:
        """The first token of the window before; None where this is the first."""
        return max(0, self.first - WINDOW) if self.first > 0 else None

    @property
    def after(self) -> int | None:
        return self.last if self.last < self.count else None


def token_page(view: TokenView, selected: int | None, by: str) -> TokenPage:
    """The window with the selected token; the first one where none is selected."""
    count = sum(len(turn.tokens) for turn in view.turns)
    chosen = selected if selected is not None and 0 <= selected < count else None
    first = (chosen or 0) // WINDOW * WINDOW
    last = min(count, first + WINDOW)
    ways = colourings(view)
    colouring = next((way for way in ways if way == by), ways[0])
    tokens = [token for turn in view.turns for token in turn.tokens]
    facts = [] if chosen is None else describe(tokens[chosen], chosen, count, view.advantage)
    turns = list(_turns(view, first, last, count))
    return TokenPage(turns, count, first, last, colouring, ways, chosen, facts, view.note or "")


def _turns(view: TokenView, first: int, last: int, count: int) -> Iterator[PageTurn]:
    index = 0
    for turn in view.turns:
        inside = [
            _token(token, at, count, view.advantage)
            for at, token in enumerate(turn.tokens, start=index)
            if first <= at < last
        ]
        index += len(turn.tokens)
        if not inside and not turn.note:
            continue
        given = sum(not token.sampled for token in turn.tokens)
        heading = f"Turn {turn.number}: {given:,} given, {len(turn.tokens) - given:,} sampled"
        if turn.branch:
            heading += "; a new branch, which left out some of the turn before"
        yield PageTurn(heading, turn.note or "", inside)


def _token(token: Token, index: int, count: int, advantage: float | None) -> PageToken:
    text = f"{token.id} " if token.text is None else token.text or "·"
    words = ", ".join(describe(token, index, count, advantage))
    return PageToken(index, text.replace("\n", "⏎"), _classes(token, advantage), words, text.count("\n"))


def _classes(token: Token, advantage: float | None) -> str:
    """Names for every way of shading at once; the page chooses between them by one class further up."""
    if not token.sampled:
        return "given"
    names = [f"p-{likely_style(token.logprob) or 'even'}"] if token.logprob is not None else []
    own = advantage if token.advantage is None else token.advantage
    if own:
        names.append("a-up" if own > 0 else "a-down")
    if token.version is not None:
        names.append(f"v-{token.version % VERSIONS}")
    if token.ratio is not None and not 0.8 <= token.ratio <= 1.25:
        names.append("r-off" if 0.5 <= token.ratio <= 2 else "r-far")
    if token.masked:
        names.append("masked")
    if token.clipped:
        names.append("clipped")
    return " ".join(names)


# The branches of a rollout: a bar each, on which what was trained stands out.

MOST_BRANCHES = 100
LEAST_WIDTH = 0.25
"""Percent of a bar that sampled tokens have at least, so that they are seen."""


@dataclass(frozen=True, slots=True)
class BranchBar:
    """A segment: its place on the bar in percent, and what it says."""

    classes: str
    x: float
    width: float
    token: int | None
    words: str


@dataclass(frozen=True, slots=True)
class PageBranch:
    name: str
    words: str
    bars: list[BranchBar]


@dataclass(frozen=True, slots=True)
class TreePage:
    """All of it; `more` branches are not drawn."""

    words: str
    branches: list[PageBranch]
    more: int
    note: str


def tree_page(tree: BranchTree, part: str) -> TreePage:
    """What the page draws and says of a rollout in a part of a run, such as step_000001."""
    calls, branches = sum(len(branch.turns) for branch in tree.branches), len(tree.branches)
    sampled, learned = sum(branch.sampled for branch in tree.branches), sum(branch.learned for branch in tree.branches)
    words = f"{_count(calls, 'call')} of the policy in {_count(branches, 'branch')}: "
    words += f"{learned:,} of {sampled:,} sampled tokens are trained."
    if not learned:
        why = "The rollout has no advantage, or the learner left out all of them."
        words += f" {why if part.startswith('step_') else 'The rollout is of an evaluation.'}"
    drawn = [_page_branch(branch, tree.length) for branch in tree.branches[:MOST_BRANCHES]]
    return TreePage(words, drawn, branches - len(drawn), tree.note)


def _page_branch(branch: Branch, length: int) -> PageBranch:
    first, last = branch.turns[0], branch.turns[-1]
    words = [
        f"turn {first}"
        if first == last
        else f"turns {first} to {last}"
        if (branch.turns[-1] - branch.turns[0] + 1 == len(branch.turns))
        else _count(len(branch.turns), "turn")
    ]
    if branch.parent:
        words.insert(0, f"leaves branch {branch.parent} after {_count(branch.shared, 'token')}")
    words.append(f"{branch.learned:,} of {branch.sampled:,} sampled tokens trained")
    return PageBranch(
        f"Branch {branch.number}", "; ".join(words), [_bar(one, branch, length) for one in branch.segments]
    )


def _bar(segment: Segment, branch: Branch, length: int) -> BranchBar:
    width = 100 * segment.length / length
    if segment.kind == "shared":
        words = f"{_count(segment.length, 'token')} shared with branch {branch.parent}"
        return BranchBar("shared", 0.0, width, None, words)
    x, words = 100 * segment.start / length, f"turn {segment.turn}: {segment.length:,} given"
    if segment.kind == "given":
        return BranchBar("given", x, width, segment.token, words)
    words = f"turn {segment.turn}: {segment.length:,} sampled, {segment.learned:,} trained"
    words += "" if segment.advantage is None else f", advantage {segment.advantage:+.3f}"
    direction = "" if segment.kind == "untrained" else " up" if (segment.advantage or 0) > 0 else " down"
    return BranchBar(
        f"sampled {segment.kind}{direction}", min(x, 100 - LEAST_WIDTH), max(width, LEAST_WIDTH), segment.token, words
    )


def _count(number: int, noun: str) -> str:
    plural = {"branch": "branches"}.get(noun, f"{noun}s")
    return f"{number:,} {noun if number == 1 else plural}"
