"""`whet view`: the application that holds the screens, and the function behind the command.

No text of a file is ever passed to rich or Textual as markup; see `widgets/lines.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key

from whet.errors import RunError
from whet.records.directory import RESULTS
from whet.records.sources import find_sources, source_at
from whet.records.store import Store, open_store
from whet.viewer.listing import Listing
from whet.viewer.screens.base import ScreenName, ViewerApp
from whet.viewer.screens.dialogs import Ask

FOLDERS = (Path("outputs/evals"), Path("runs"))
"""Where `whet eval run`, `whet train run` and `whet gepa run` write, by default."""


def view(path: Path | None) -> int:
    """Run the viewer on a run, or on the runs below a folder; returns the exit code.

    Without a path: the evaluations and runs of this folder. Raises `RunError` where there is nothing to show.
    """
    target = find_target(path)
    app = Viewer(target)
    app.run()
    return app.return_code or 0


def find_target(path: Path | None) -> Store | list[Path]:
    """What `whet view PATH` shows: one run, opened, or the folders to look below."""
    if path is None:
        folders = [folder for folder in FOLDERS if folder.is_dir()]
        if not folders:
            here = " nor ".join(map(str, FOLDERS))
            raise RunError(
                f"there is neither {here} here. `whet eval run` and `whet train run` make them; or name yours: "
                "whet view PATH"
            )
        return folders
    if path.is_dir() and not _is_run(path):
        if find_sources(path):
            return [path]
        raise RunError(
            f"{path}: no evaluation and no run in it, nor below it. Name the directory of one, its {RESULTS}, or a "
            "folder with some."
        )
    return open_store(path)


def _is_run(path: Path) -> bool:
    try:
        source_at(path)
    except RunError:
        return False
    return True


class Viewer(ViewerApp):
    """The viewer. A store is closed when its screen is left. Screens are imported when the first one is opened."""

    TITLE = "whet view"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("q", "quit", show=False),
    ]

    def __init__(self, target: Store | Sequence[Path]) -> None:
        # With NO_COLOR the terminal's own colours: Textual would turn those of its theme into greys.
        plain = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True if plain else None)
        if plain:
            self.theme = "ansi-dark"
        self.target = target

    def on_mount(self) -> None:
        if isinstance(self.target, Store):
            self.open_screen("rollouts", Listing(self.target))
            return
        from whet.viewer.screens.runs import RunsScreen

        self.push_screen(RunsScreen(self.target))

    def on_key(self, event: Key) -> None:
        """Text that was typed before a dialog got the focus arrives here."""
        if isinstance(self.screen, Ask) and self.screen.take(event):
            event.prevent_default()

    def open_screen(self, name: ScreenName, listing: Listing) -> None:
        from whet.viewer.screens import group, rollout, rollouts, tokens

        screens = {
            "rollouts": rollouts.RolloutsScreen,
            "rollout": rollout.RolloutScreen,
            "group": group.GroupScreen,
            "tokens": tokens.TokensScreen,
        }
        self.push_screen(screens[name](listing))

    def action_interrupt(self) -> None:
        self.exit(return_code=130)
