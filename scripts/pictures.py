"""Write docs/pictures: what is seen of real evaluations of whet/tiny. Takes a minute, and needs no network.

.venv/bin/python scripts/pictures.py
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType

from whet.display.page.rendering import document
from whet.evals.analysis.summary import EvalSummary
from whet.evals.live.progress import SessionProgress
from whet.evals.live.view import live_view
from whet.evals.observer import EvalObserver, PlannedEval
from whet.evals.planning.plan import plan_evals
from whet.evals.printing import print_summaries
from whet.evals.report import TEMPLATE, read_report, title_of, values
from whet.evals.sessions.session import run_evals
from whet.records.store import open_store
from whet.types import RolloutOutput
from whet.viewer.app import Viewer

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 104, 30
KEYS = "←/→ evaluation   s sample   q stop"
ABLATION = ROOT / "configs" / "eval" / "ablation.toml"
FAR_FONT = re.compile(r',\s*url\("https://[^"]*"\) format\("[^"]*"\)')
"""rich's pictures also name a font on the web; a page should not fetch it."""


class OnTheWay(EvalObserver):
    """An observer that keeps what the live view shows once a third of the rollouts are there."""

    def __init__(self) -> None:
        self.progress: SessionProgress | None = None
        self.picture: RenderableType | None = None

    def start(self, evaluations: Sequence[PlannedEval]) -> None:
        self.progress = SessionProgress(evaluations, time.monotonic)

    def rollout(self, evaluation: int, row: RolloutOutput) -> None:
        assert self.progress is not None
        self.progress.rollout(evaluation, row)
        if self.picture is None and self.progress.done * 3 >= self.progress.total:
            self.picture = live_view(self.progress, evaluation, "latest", WIDTH, HEIGHT, KEYS)

    def finish(self, evaluation: int, summary: EvalSummary) -> None:
        assert self.progress is not None
        self.progress.finish(evaluation)


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    with working_folder():
        two = OnTheWay()
        asked = {"num_examples": 100, "rollouts_per_example": 4, "max_concurrent": 16, "save": False}
        run_evals(plan_evals(["arithmetic", "reverse-text"], asked), two)
        assert two.picture is not None
        console = recorder()
        console.print(two.picture)
        save(console.export_svg(title="whet eval run arithmetic reverse-text -n 100 -r 4"), "eval-live")

        one = run_evals(plan_evals(["arithmetic"], {"num_examples": 64, "rollouts_per_example": 4}), OnTheWay())
        picture_of(one, "eval-summary", "whet eval run arithmetic -n 64 -r 4")
        assert one[0].results is not None
        data = read_report(one[0].results)
        save(top_of_report(document(TEMPLATE, title_of(data), values(data))), "eval-report")
        several = run_evals(plan_evals([str(ABLATION)], {"save": False}), OnTheWay())
        picture_of(several, "eval-ablation", "whet eval run configs/eval/ablation.toml")

        tools = run_evals(plan_evals(["calculator"], {"num_examples": 4, "rollouts_per_example": 4}), OnTheWay())
        assert tools[0].results is not None
        save(asyncio.run(screen_of_viewer(tools[0].results)), "eval-view")


@contextlib.contextmanager
def working_folder() -> Iterator[None]:
    """Results are written to a folder that is thrown away, under the short paths that a reader would see."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.symlink(ROOT / "environments", "environments")
        try:
            yield
        finally:
            os.chdir(before)


def recorder() -> Console:
    return Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True)


def picture_of(summaries: Sequence[EvalSummary], name: str, command: str) -> None:
    console = recorder()
    print_summaries(summaries, console)
    save(console.export_svg(title=command), name)


async def screen_of_viewer(results: Path) -> str:
    """A conversation in `whet view`, as Textual draws it."""
    app = Viewer(open_store(results))
    async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        return app.export_screenshot(title="whet view")


def top_of_report(page: str, width: int = 1000, height: int = 780, until: str = "Best rollouts") -> str:
    """The beginning of report.html as a picture: the page itself, without its script, inside an SVG."""
    style = page.partition("<style>")[2].partition("</style>")[0].replace("body {", ".page {")
    space = 'xmlns="http://www.w3.org/2000/svg"'
    body = (
        page.partition('<main class="page">')[2]
        .partition(f'<section class="stack"><h2>{until}')[0]
        .replace("<svg ", f"<svg {space} ")
    )
    size = f'width="{width}" height="{height}"'
    box = f'xmlns="http://www.w3.org/1999/xhtml" style="height: {height}px; overflow: hidden"'
    return (
        f'<svg {space} viewBox="0 0 {width} {height}" {size}><foreignObject {size}><div {box}>'
        f'<style><![CDATA[{style}]]></style><div class="page">{body}</div></div></foreignObject></svg>\n'
    )


def save(svg: str, name: str) -> None:
    path = TARGET / f"{name}.svg"
    path.write_text(FAR_FONT.sub("", svg), encoding="utf-8")
    print(path.relative_to(ROOT), f"{path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
