"""The live view's pictures: pure functions from `SearchProgress` to lines for rich, as many as there is room for.

Removed lines begin with `-`, added ones with `+`: colour is never the only sign.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from whet.display.picture import bar, boxed, labelled, one_line, rate_text, times_text
from whet.display.text import number
from whet.gepa.live.progress import PhaseProgress, Proposal, SearchProgress
from whet.gepa.records.tables import SIGNS, diff_text
from whet.gepa.text_diff import DiffLine, Piece, difference, whole
from whet.gepa.types import Candidate, CandidateRecord, Confirmation
from whet.system.terminal import duration, safe_text

Comparison = Literal["parent", "seed", "whole"]
COMPARISONS: tuple[Comparison, ...] = ("parent", "seed", "whole")
"""What the shown candidate is compared with; `whole` shows its texts as they are."""
LEAST_LIST = 3
LEAST_DIFF = 4
"""Lines of the panel that are worth having: its frame, and two inside."""
LAST_LIST, LAST_DIFF = 10, 14
"""Candidates, and lines of the best one's difference, that stay in the end."""
LONGEST_SAME = 60
"""Characters of a stretch that did not change, inside a line that did."""
TEXT_LENGTH = 4000
"""Characters of a line that are shown at all."""
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


def live_view(
    search: SearchProgress,
    width: int,
    height: int,
    *,
    selected: int | None = None,
    comparison: Comparison = "parent",
    scrolled: int = 0,
    footer: str = "",
    sampling: str = "",
) -> RenderableType:
    """The whole live view, in at most `height` lines.

    Args:
        search: what is known.
        width, height: columns and lines there are.
        selected: the number of the candidate that is shown; None: the one that is worked on.
        comparison: what it is compared with.
        scrolled: lines of the comparison that are scrolled away.
        footer: a last line, left out where it is empty.
        sampling: what models run here are sampling, in words.
    """
    room = height - bool(footer)
    # What matters most comes first, so a small window cuts off the rest.
    summary = [*_summary(search, width), *([labelled("sampling", sampling)] if sampling else [])]
    parts: list[RenderableType] = list(summary[: max(1, room)])
    room -= len(parts)
    shown = shown_candidate(search, selected)
    listed = _list(search, shown, width, _lines_of_list(len(candidates(search)), room))
    parts += listed
    room -= len(listed)
    if shown is not None and room >= LEAST_DIFF:
        parts.append(_comparison(search, shown, comparison, scrolled, width, room))
    if footer:
        parts.append(one_line(footer, "dim"))
    return Group(*parts)


def last_view(search: SearchProgress, width: int, height: int) -> RenderableType:
    """What stays when the search is over, above the outcome: calls, what was accepted, and what that changed."""
    parts: list[RenderableType] = list(_summary(search, width, ended=True)[:2])
    best, rejected = search.best, search.count("rejected")
    parts += [_candidate(search, one, one is best) for one in search.records if one.verdict != "rejected"][-LAST_LIST:]
    if rejected:
        parts.append(one_line(f"  {MARKS['rejected']} {_rejections(rejected)}", "dim"))
    room = min(LAST_DIFF, height - len(parts))
    if best is not None and best.verdict != "seed" and room >= LEAST_DIFF:
        parts.append(_comparison(search, best, "seed", 0, width, room))
    return Group(*parts[:height])


def candidates(search: SearchProgress) -> list[Shown]:
    """Those that were decided on, and the one that is worked on last."""
    return [*search.records, *([search.proposal] if search.proposal else [])]


def shown_candidate(search: SearchProgress, selected: int | None) -> Shown | None:
    """The selected candidate; the last one where none is selected, or the selected one is gone."""
    there = candidates(search)
    return next((one for one in there if one.number == selected), there[-1] if there else None)


def moved(search: SearchProgress, selected: int | None, by: int) -> int | None:
    """The number of the candidate `by` positions further, cyclically; None follows the current proposal."""
    there = candidates(search)
    shown = shown_candidate(search, selected)
    if shown is None:
        return None
    index = (there.index(shown) + by) % len(there)
    return None if index == len(there) - 1 else there[index].number


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
        text += f": {_detail(search, phase.detail)}"
    if phase.total:
        text += f"  {phase.done}/{phase.total}"
    rewards = [
        f"reward {number(tally.mean)}"
        if candidate == phase.detail
        else f"{_name(search, candidate)}: {number(tally.mean)}"
        for candidate, tally in phase.tallies.items()
    ]
    return f"{text}  {', '.join(rewards)}" if 0 < len(rewards) <= 3 else text


def _detail(search: SearchProgress, detail: str) -> str:
    """A candidate by its name, anything else as it is."""
    return _name(search, detail) if CANDIDATE_ID.fullmatch(detail) else safe_text(detail)


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


def confirmation_line(found: Confirmation) -> str:
    """The confirmation in one line, and whether it is a difference."""
    verdict = "better" if found.real else "worse" if found.high < 0 else "this is not a difference"
    return (
        f"held-out reward {number(found.best_mean)}, the seed {number(found.seed_mean)}: {found.difference:+.3f} "
        f"(95 % interval {found.low:+.3f} to {found.high:+.3f}): {verdict}"
    )


def _lines_of_list(count: int, room: int) -> int:
    """Lines for the list: a third of what is left, so that the comparison is seen; none where that is too few."""
    lines = min(count, max(LEAST_LIST, room // 3))
    return lines if room >= lines else 0


def _list(search: SearchProgress, shown: Shown | None, width: int, most: int) -> list[Text]:
    """A line a candidate; where there are too many, old proposals that were rejected are left out first."""
    there = candidates(search)
    if not there or most < 1:
        return []
    shown = shown or there[-1]
    order = sorted(there, key=lambda one: (one is shown, one is there[-1], not _is_rejected(one), one.number))
    return [_candidate(search, one, one is shown) for one in sorted(order[-most:], key=lambda one: one.number)]


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


def _comparison(
    search: SearchProgress, shown: Shown, comparison: Comparison, scrolled: int, width: int, room: int
) -> Panel:
    """The shown candidate's texts against others, in a box of at most `room` lines."""
    inner = max(4, width - 4)
    other = _other(search, shown, comparison)
    lines = _compared(other.texts if other is not None else None, shown.texts, inner)
    inside = room - 2
    if len(lines) > inside:
        scrolled = min(scrolled, max(0, len(lines) - inside))
        below = len(lines) - scrolled - inside
        lines = lines[scrolled : scrolled + inside]
        if below:
            lines[-1] = one_line(f"... {below + 1} more lines", "dim")
    against = f" against {_name(search, other.id)}" if other is not None else ""
    who = "the seed" if isinstance(shown, CandidateRecord) and shown.verdict == "seed" else f"candidate {shown.number}"
    return boxed(lines, f"{who}{against}", width)


def _other(search: SearchProgress, shown: Shown, comparison: Comparison) -> CandidateRecord | None:
    """What it is compared with; nothing where its texts are shown whole."""
    if comparison == "whole":
        return None
    if comparison == "seed":
        other = search.seed
    else:
        parents = [shown.parent] if isinstance(shown, Proposal) else shown.parents
        other = search.by_id.get(parents[0]) if parents else None
    return None if other is shown else other


def _compared(before: Candidate | None, after: Candidate, width: int) -> list[Text]:
    """Lines for each component that changed (or each, where there is nothing to compare with), under its name."""
    lines: list[Text] = []
    for name in after:
        found = _difference(None if before is None else before.get(name, ""), after[name])
        if not found:
            continue
        if len(after) > 1:
            lines.append(one_line(safe_text(name), "bold"))
        lines += [made for line in found for made in _diff_lines(line, width)]
    return lines or [one_line("no difference", "dim")]


@lru_cache(maxsize=64)
def _difference(before: str | None, after: str) -> tuple[DiffLine, ...]:
    return tuple(whole(after) if before is None else difference(before, after))


def _diff_lines(line: DiffLine, width: int) -> list[Text]:
    """A line of a difference, folded; the words that differ stand out in it."""
    if line.kind == "hidden":
        return [one_line(f"  ... {line.text}", "dim")]
    sign, style = SIGNS[line.kind]
    if line.kind == "same" and line.pieces and not line.text.strip():
        return [Text("")]
    text = diff_text(line, _brief(line.pieces))
    folded = list(text.wrap(_FOLDER, max(2, width - 2)))
    return [
        one_line(Text.assemble((sign if index == 0 else "  ", style), part))
        for index, part in enumerate(folded or [Text("")])
    ]


def _brief(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Long stretches that did not change are cut in their middle, where something around them did."""
    half = LONGEST_SAME // 2
    for index, (piece, changed) in enumerate(pieces):
        text = piece[:TEXT_LENGTH]
        if changed or len(pieces) == 1 or len(text) <= LONGEST_SAME:
            yield text, changed
        else:
            head, tail = text[:half] if index else "", piece[-half:] if index < len(pieces) - 1 else ""
            yield f"{head}…{tail}", changed


_FOLDER = Console(file=io.StringIO(), width=80, color_system=None)
"""For `Text.wrap`, which asks a console for its defaults."""


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
