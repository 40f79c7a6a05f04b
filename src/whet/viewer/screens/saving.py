"""Copying a rollout, and writing one or all that are listed to a file: the questions, and the work aside."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from whet.errors import WhetError
from whet.viewer.clipboard import save_instead, why_not
from whet.viewer.export import markdown
from whet.viewer.listing import Listing
from whet.viewer.saving import Form, save, suggested_name
from whet.viewer.screens.ask import Ask, Choose

if TYPE_CHECKING:
    from whet.viewer.screens.base import ViewerScreen


async def copy_rollout(screen: ViewerScreen, listing: Listing) -> None:
    """The rollout that is looked at, as Markdown, to the terminal's clipboard, or to a file where that cannot be."""
    if listing.number is None:
        return
    try:
        text = markdown(await asyncio.to_thread(listing.row, listing.number))
    except WhetError as error:
        screen.say(str(error), wrong=True)
        return
    reason = why_not(text, os.environ)
    if reason is None:
        screen.app.copy_to_clipboard(text)
        screen.say(f"copied {len(text):,} characters, as Markdown. If nothing can be pasted, x writes a file.")
        return
    try:
        path = save_instead(text)
    except OSError as error:
        screen.say(f"{reason}, and no file can be written ({error.strerror})", wrong=True)
        return
    screen.say(f"{reason}; the rollout is in {path}")


async def export_rollouts(screen: ViewerScreen, listing: Listing) -> None:
    """Ask what, in which form and where to; then write, saying how far it is."""
    number, count = listing.number, len(listing.heads)
    if number is None:
        return
    answers = [
        ("this rollout, Markdown", ".md"),
        ("this rollout, as it stands in the file", ".jsonl"),
        (f"all {count:,} listed, Markdown", ".md"),
        (f"all {count:,} listed, as they stand in the file", ".jsonl"),
    ]
    answer = await screen.app.push_screen_wait(Choose("Export", answers))
    if answer is None:
        return
    form: Form = "md" if answer in (0, 2) else "jsonl"
    one = answer < 2
    name = suggested_name(listing.store, number if one else None, form)
    file = await screen.app.push_screen_wait(Ask("Write to which file", name))
    if not file:
        return
    numbers = [number] if one else list(listing.heads.numbers)
    stopped = False

    def on_progress(done: int, total: int) -> None:
        if total > 1000 and done % 1000 == 0:
            screen.app.call_from_thread(screen.say, f"writing {done:,} of {total:,}")

    try:
        written, left_out = await asyncio.to_thread(
            save, listing.store, numbers, form, Path(file), on_progress=on_progress, stopped=lambda: stopped
        )
    except WhetError as error:
        screen.say(str(error), wrong=True)
        return
    except asyncio.CancelledError:
        stopped = True
        raise
    rest = f"; {left_out:,} lines that are no rollouts were left out" if left_out else ""
    screen.say(f"wrote {written:,} rollouts to {file}{rest}" if written != 1 else f"wrote the rollout to {file}{rest}")
