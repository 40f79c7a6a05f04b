"""Write the pictures of docs/guides/view.md: `whet view` on a real evaluation and a real training run of whet/tiny.

.venv/bin/python scripts/viewer_pictures.py

Half a minute on two cores, and no network. Both runs are seeded, and made with the commands that the page names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from textual.pilot import Pilot

from pictures import HEIGHT, ROOT, WIDTH, save, working_folder
from whet.cli.main import main as whet
from whet.viewer.app import Viewer, find_target

QUICKSTART = ROOT / "configs" / "rl" / "quickstart.toml"


def main() -> None:
    with working_folder():
        assert whet(["eval", "run", "calculator", "-n", "8", "-r", "4"]) == 0
        assert whet(["eval", "run", "alphabet-sort", "-n", "8", "-r", "4"]) == 0
        training = ["--name", "mine", "--max-steps", "3", "--batch-size", "64", "--deployment.threads", "1"]
        assert whet(["train", "run", str(QUICKSTART), *training]) == 0
        take(None, [], "view-runs")
        calculator = next(Path("outputs/evals").glob("calculator*/*"))
        take(calculator, ["R", "R"], "view-rollouts")
        take(calculator, ["enter", "tab", "tab"], "view-rollout")
        take(calculator, ["g"], "view-group")
        take(Path("runs/mine"), ["p", "down", "down", "down", "down", "enter", "t", "n"], "view-tokens")


def take(path: Path | None, keys: Sequence[str], name: str) -> None:
    """The screen after these keys."""

    async def run() -> str:
        app = Viewer(find_target(path))
        async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
            await settle(pilot)
            for key in keys:
                await pilot.press(key)
                await settle(pilot)
            return app.export_screenshot(title="whet view")

    save(asyncio.run(run()), name)


async def settle(pilot: Pilot[None]) -> None:
    """Until what is read aside is on the screen: reading takes milliseconds here, drawing too."""
    for _ in range(10):
        await pilot.pause(0.05)


if __name__ == "__main__":
    main()
