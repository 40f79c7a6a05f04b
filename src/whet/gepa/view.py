"""Shows a search while it works: a live view in a terminal, plain lines elsewhere.

Plain lines are few enough for a log: one at the start, one for each candidate that was decided on, one for each tenth
of the budget (or a minute, where that takes longer), every note, and the confirmation. What the log of an earlier
process answers is one line. All of it is on standard error: a result on standard output can be piped and redirected.
The pictures are pure functions from `SearchProgress`, as many lines as there is room for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from whet.display.live import Output, RunView
from whet.display.picture import bar, labelled, one_line, rate_text, times_text
from whet.display.text import number
from whet.gepa.progress import PhaseProgress, Proposal, SearchProgress
from whet.gepa.types import CandidateRecord, Confirmation, Forwarder, Scored, SearchObserver, SearchPlan
from whet.system.terminal import duration, safe_text

KEYS = "q stop"
LAST_LIST = 10
"""Candidates that stay in the end."""
PHASES = {
    "baseline": "the seed prompt on validation examples",
    "minibatch": "minibatch",
    "reflection": "the reflection model writes a proposal",
    "race": "race on validation examples",
    "confirmation": "the winner against the seed on held-out examples",
}
CANDIDATE_ID = re.compile(r"[0-9a-f]{12}")
MARKS = {"seed": "·", "accepted": "✓", "rejected": "✗"}
STYLES = {"seed": "", "accepted": "green", "rejected": "dim"}

Shown = CandidateRecord | Proposal


def open_view(title: str, *, plain: bool = False) -> SearchObserver:
    """The view of a search, on standard error. `title` says what is optimised: `reverse-text with whet/tiny`."""
    return SearchView(title, Output.find(plain=plain))


class SearchView(RunView, Forwarder):
    """An observer that shows a search, from the plan on."""

    stop_question = "Stop the search? q again stops it (it can be resumed), any other key continues."

    def __init__(self, title: str, output: Output) -> None:
        super().__init__(output)
        self._title = title
        self._progress = SearchProgress(title, output.clock)
        self._unsaid: list[str] = []  # what was decided on by what the log answered
        self._replayed = 0

    @property
    def keys(self) -> str:
        return KEYS

    def send(self, event: str, *args: Any) -> None:
        with self.lock:
            getattr(self._progress, event)(*args)
        self.changed()

    def planned(self, plan: SearchPlan) -> None:
        super().planned(plan)
        self.line(f"{safe_text(self._title)}: at most {plan.max_calls} calls")
        self.begin()

    def finished(self, scored: Scored, spent: int, cost: float | None, replayed: bool = False) -> None:
        super().finished(scored, spent, cost, replayed)
        if self.live:
            return
        if replayed:
            self._replayed += 1
            return
        self._say_what_the_log_had()
        if self.due(self._tenth):
            self.print(progress_line(self._progress))

    def decided(self, record: CandidateRecord) -> None:
        super().decided(record)
        line = f"candidate {record.number}: {safe_text(candidate_reason(record))}"
        if record.val_mean is not None:
            line += f" ({number(record.val_mean)} on validation)"
        if self._progress.replaying:
            self._unsaid.append(line)
        else:
            self._say_what_the_log_had()
            self.line(line)

    def confirmed(self, confirmation: Confirmation) -> None:
        super().confirmed(confirmation)
        self._say_what_the_log_had()
        self.line(f"confirmed: {confirmation_line(confirmation)}")

    def close(self) -> None:
        self._say_what_the_log_had()
        super().close()

    @property
    def _tenth(self) -> int:
        """How many tenths of the budget are spent."""
        return 10 * self._progress.spent // max(1, self._progress.max_calls)

    def _say_what_the_log_had(self) -> None:
        """One line for all of it, once."""
        if not self._replayed:
            return
        self.passed(self._tenth)
        candidates, self._unsaid = len(self._unsaid), []
        self.line(f"from the log: {self._replayed} calls, {candidates} candidates decided on, not paid for again")
        self._replayed = 0

    def draw(self, width: int, height: int, footer: str) -> RenderableType:
        if self.closed:
            return last_view(self._progress, width, height)
        return live_view(self._progress, width, height, footer=footer, sampling=self.sampling())


def live_view(
    search: SearchProgress, width: int, height: int, *, footer: str = "", sampling: str = ""
) -> RenderableType:
    """The whole live view, in at most `height` lines.

    Args:
        search: what is known.
        width, height: columns and lines there are.
        footer: a last line, left out where it is empty.
        sampling: what models run here are sampling, in words.
    """
    room = height - bool(footer)
    # What matters most comes first, so a small window cuts off the rest.
    summary = [*_summary(search, width), *([labelled("sampling", sampling)] if sampling else [])]
    lines = summary[: max(1, room)]
    lines += _list(search, room - len(lines))
    return Group(*lines, *([one_line(footer, "dim")] if footer else []))


def last_view(search: SearchProgress, width: int, height: int) -> RenderableType:
    """What stays when the search is over, above the outcome: calls, and what was accepted."""
    lines = _summary(search, width, ended=True)[:2]
    best, rejected = search.best, search.count("rejected")
    lines += [_candidate(search, one, one is best) for one in search.records if one.verdict != "rejected"][-LAST_LIST:]
    if rejected:
        lines.append(one_line(f"  {MARKS['rejected']} {_rejections(rejected)}", "dim"))
    return Group(*lines[:height])


def _summary(search: SearchProgress, width: int, ended: bool = False) -> list[Text]:
    """Everything but the candidates, most important first."""
    lines = [one_line(safe_text(search.title), "bold"), _bar(search, width, ended), _phase(search)]
    if search.confirmation is not None:
        lines.append(labelled("confirmed", confirmation_line(search.confirmation)))
    if search.best is not None:
        lines.append(labelled("best", best_line(search)))
    if len(search.records) > 1:
        lines.append(labelled("proposals", proposals_line(search)))
    if search.errors:
        lines.append(labelled("errors", f"{_calls(search.errors)} failed: reward 0", "red"))
    if search.cost is not None:
        lines.append(labelled("cost", f"${search.cost:.4f}"))
    return lines


def _bar(search: SearchProgress, width: int, ended: bool) -> Text:
    """The budget: a bar, numbers, times; what is reserved for the final comparison is dotted."""
    total = search.max_calls
    confirming = search.current is not None and search.current.name == "confirmation"
    kept = search.plan.reserved if search.plan and not confirming and not ended else 0
    spent = f"{search.spent}/{total} calls" if total else f"{search.spent} calls"
    if ended:
        times, rate = duration(search.elapsed), ""
    else:
        remaining = search.remaining if search.spent < total else None
        times, rate = times_text(search.elapsed, remaining, at_most=True), rate_text(search.rate, "calls")
    return bar(search.spent, total, width, f" {spent}  {times}  {rate}".rstrip(), reserved=kept)


def _phase(search: SearchProgress) -> Text:
    if search.current is None:
        return labelled("phase", "getting ready")
    text = phase_line(search.current, search)
    return labelled("phase", f"from the log: {text}" if search.replaying else text)


def phase_line(phase: PhaseProgress, search: SearchProgress) -> str:
    """What the search is doing, how far it is, and what was earned in it."""
    text = PHASES[phase.name]
    if phase.detail:
        text += f": {_name(search, phase.detail) if CANDIDATE_ID.fullmatch(phase.detail) else safe_text(phase.detail)}"
    if phase.total:
        text += f"  {phase.done}/{phase.total}"
    rewards = [
        f"reward {number(tally.mean)}"
        if candidate == phase.detail
        else f"{_name(search, candidate)}: {number(tally.mean)}"
        for candidate, tally in phase.tallies.items()
    ]
    return f"{text}  {', '.join(rewards)}" if 0 < len(rewards) <= 3 else text


def _name(search: SearchProgress, id: str) -> str:
    if search.proposal is not None and search.proposal.id == id:
        return f"candidate {search.proposal.number}"
    record = search.by_id.get(id)
    if record is not None:
        return "seed" if record.verdict == "seed" else f"candidate {record.number}"
    return "proposal" if search.records else "seed"  # the seed is called first


def best_line(search: SearchProgress) -> str:
    """The best candidate and what it is better by."""
    best, seed = search.best, search.seed
    assert best is not None
    if best.verdict == "seed":
        return f"the seed, {number(best.val_mean)} on validation"
    text = f"candidate {best.number}, {number(best.val_mean)} on validation"
    if seed is None or seed.val_mean is None or best.val_mean is None:
        return text
    return f"{text}; the seed {number(seed.val_mean)} ({best.val_mean - seed.val_mean:+.3f})"


def proposals_line(search: SearchProgress) -> str:
    """How many proposals became candidates."""
    accepted, rejected = search.count("accepted"), search.count("rejected")
    return f"{accepted + rejected} so far: {accepted} accepted, {rejected} rejected"


def confirmation_line(result: Confirmation) -> str:
    """The confirmation in one line, and whether it is a difference."""
    verdict = "better" if result.real else "worse" if result.high < 0 else "this is not a difference"
    return (
        f"held-out reward {number(result.best_mean)}, the seed {number(result.seed_mean)}: {result.difference:+.3f} "
        f"(95 % interval {result.low:+.3f} to {result.high:+.3f}): {verdict}"
    )


def _list(search: SearchProgress, most: int) -> list[Text]:
    """A line a candidate; where there are too many, old proposals that were rejected are left out first."""
    known: list[Shown] = [*search.records, *([search.proposal] if search.proposal else [])]
    if not known or most < 1:
        return []
    order = sorted(known, key=lambda one: (one is known[-1], not _is_rejected(one), one.number))
    return [_candidate(search, one, one is known[-1]) for one in sorted(order[-most:], key=lambda one: one.number)]


def _is_rejected(one: Shown) -> bool:
    return isinstance(one, CandidateRecord) and one.verdict == "rejected"


def _candidate(search: SearchProgress, one: Shown, selected: bool) -> Text:
    if isinstance(one, Proposal):
        parent = search.by_id.get(one.parent)
        tally = f"{number(one.tally.mean)} in {_calls(one.tally.calls)}" if one.tally.calls else "no call yet"
        cells, style, reason = f"? {one.number:>3}          {_from([parent])}", "bold", tally
    else:
        score = number(one.val_mean) if one.val_mean is not None else ""
        parents = _from([search.by_id.get(id) for id in one.parents])
        cells = f"{MARKS[one.verdict]} {one.number:>3}  {score:>6}  {parents}"
        style, reason = STYLES[one.verdict], candidate_reason(one)
    text = Text.assemble("▸ " if selected else "  ", (cells, f"{style} bold".strip() if selected else style))
    return one_line(text.append(f"  {safe_text(reason)}", style="dim"))


def candidate_reason(record: CandidateRecord) -> str:
    """`accepted: better than its parent on 9 of 12 examples`."""
    if record.verdict == "seed":
        return "the seed"
    return f"{record.verdict}: {record.reason}" if record.reason else record.verdict


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def _rejections(count: int) -> str:
    return "1 proposal was rejected" if count == 1 else f"{count} proposals were rejected"


def _from(parents: Sequence[CandidateRecord | None]) -> str:
    names = [str(parent.number) for parent in parents if parent is not None]
    return f"{'from ' + '+'.join(names) if names else '':<8}"


def progress_line(search: SearchProgress) -> str:
    """How far the search has come, on one line, for logs."""
    total = search.max_calls
    parts = [f"{search.spent}/{total} calls"]
    if search.current is not None:
        parts.append(phase_line(search.current, search))
    if search.best is not None:
        parts.append(f"best {best_line(search)}")
    if search.errors:
        parts.append(f"{search.errors} failed")
    if search.cost is not None:
        parts.append(f"${search.cost:.4f}")
    if search.remaining is not None and search.spent < total:
        parts.append(f"at most {duration(search.remaining)} left")
    return "  ".join(parts)
