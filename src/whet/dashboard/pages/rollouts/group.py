"""The rollouts of a group side by side, with what differs between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from whet.dashboard.call import Call, Number, RunId, Words
from whet.dashboard.data.rollouts import ShownRollout, read_group
from whet.dashboard.data.stores import OpenStore
from whet.dashboard.pages.rendering import PageRoute, address, render, run_path
from whet.gepa.text_diff import Piece, difference
from whet.records import rollout_text
from whet.records.heads import Head
from whet.records.listing import mean_reward, origin
from whet.records.rollout_text import conversation, pieces

router = APIRouter(route_class=PageRoute)
SHORT_PROMPT = 1_500
"""Characters of a prompt that is shown unfolded."""
MOST_COMPARED = 20_000
"""Characters of an answer that is compared with another one."""
EVERY_LINE = 1_000_000


@router.get("/runs/{run}/groups/{number}")
def group_page(request: Request, call: Call, run: RunId, number: Number, against: Words = "") -> Response:
    """`number`: of any rollout of the group."""
    library_run = call.run(run)
    here = run_path(request, library_run)
    with call.data.stores.use(library_run) as opened:
        shown = read_group(opened, number)
        numbers = shown[0].group
        links: dict[str, Any] = {
            "previous_link": _group_of(opened, numbers[0] - 1, here),
            "next_link": _group_of(opened, numbers[-1] + 1, here),
        }
    heads = [one.head for one in shown]
    first = heads[0]
    reference = _reference(heads, against)
    prompt = next((conversation(one.row, "prompt") for one in shown), [])
    step = first.step if first.part.startswith("step_") else None
    return render(
        request,
        "group.html",
        **links,
        run=library_run,
        number=number,
        size=len(numbers),
        where=origin(first),
        summary=_summary(heads),
        here=f"{here}/groups/{number}",
        prompt=prompt,
        short_prompt=sum(len(part.text) for message in prompt for part in message.parts) < SHORT_PROMPT,
        against=reference,
        sides=_sides(shown, reference),
        rollouts=f"{here}/rollouts",
        write=rollout_text,
        left_out=len(numbers) - len(shown),
        list_link=address(f"{here}/rollouts", {"group": first.group}),
        step_link=None if step is None else f"{here}/steps/{step}",
    )


def _group_of(opened: OpenStore, number: int, here: str) -> str | None:
    """The page of the group of another rollout, by the group's first one."""
    numbers = opened.store.group(number) if number >= 0 else []
    return f"{here}/groups/{numbers[0]}" if numbers else None


def _reference(heads: Sequence[Head], against: str) -> int | None:
    """With which rollout the others are compared: the one that is named, else the best; None for none."""
    if against == "none":
        return None
    if against.isdecimal() and any(head.number == int(against) for head in heads):
        return int(against)
    return max(heads, key=lambda head: -math.inf if head.reward is None else head.reward).number


def _summary(heads: Sequence[Head]) -> str:
    rewards = [head.reward for head in heads if head.reward is not None]
    failed = sum(head.error is not None for head in heads)
    mean = mean_reward(heads)
    parts = [f"{failed} failed"] if failed else []
    if mean is not None:
        parts.insert(0, f"mean reward {mean:.3f}, from {min(rewards):.3f} to {max(rewards):.3f}")
        if min(rewards) == max(rewards) and len(rewards) > 1:
            parts.append("all the same, so nothing is learnt from this group")
    return "; ".join(parts) or "no rollout of this group has a reward"


def _sides(shown: Sequence[ShownRollout], reference: int | None) -> list[dict[str, Any]]:
    """Each rollout; where it is compared, with its answer in pieces that say whether they differ from the reference."""
    mean = mean_reward(one.head for one in shown)
    text = next((answer_text(one.row) for one in shown if one.head.number == reference), None)
    return [
        {
            "head": one.head,
            "passed": one.passed,
            "from_mean": None if one.head.reward is None or mean is None else one.head.reward - mean,
            "conversation": conversation(one.row, "completion"),
            "lines": compared(answer_text(one.row), text) if text is not None and one.head.number != reference else (),
        }
        for one in shown
    ]


def compared(text: str, reference: str) -> Sequence[Sequence[Piece]]:
    """The lines of a text, each in pieces that say whether they differ from the reference; none where too long."""
    if max(len(text), len(reference)) > MOST_COMPARED:
        return []
    if text == reference:
        return [((line, False),) for line in text.split("\n")]
    return [line.pieces for line in difference(reference, text, context=EVERY_LINE) if line.kind in ("same", "new")]


def answer_text(row: Mapping[str, Any]) -> str:
    """All that the model said in a rollout, as one text."""
    said = [piece for piece in pieces(row) if piece.key.startswith("completion")]
    return "\n\n".join(f"{piece.title}\n{piece.text}" if not piece.begins else piece.text for piece in said)
