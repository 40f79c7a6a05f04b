"""Write the pictures of prompt optimisation into docs/pictures: a real search of the task that the tests search.

.venv/bin/python scripts/search_pictures.py

Its models are scripted (`tests/gepa/planted`), so it needs no network and takes some seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.console import RenderableType

from pictures import HEIGHT, ROOT, WIDTH, recorder, save, top_of_report, working_folder
from whet.display.page.rendering import document
from whet.gepa.options import load_config
from whet.gepa.progress import SearchProgress
from whet.gepa.records.stored import open_search
from whet.gepa.report import TEMPLATE, read_report, values
from whet.gepa.run import run_search
from whet.gepa.types import Scored
from whet.gepa.view import KEYS, live_view

sys.path.append(str(ROOT / "tests" / "gepa"))
from planted.policy import answer
from planted.reflection import Proposer
from planted.server import Endpoint
from planted.world import World

RACED = 8
"""Calls of a proposal after which it is worth a picture, once one was accepted."""


class OnTheWay(SearchProgress):
    """An observer that keeps what the live view shows while a proposal is raced."""

    shown: RenderableType | None = None

    def finished(self, scored: Scored, spent: int, cost: float | None, replayed: bool = False) -> None:
        super().finished(scored, spent, cost, replayed)
        raced = self.proposal is not None and self.proposal.tally.calls >= RACED
        if raced and self.count("accepted") and self.rate is not None:
            self.shown = live_view(self, WIDTH, HEIGHT, footer=KEYS)


def main() -> None:
    world = World.of(0, kinds=3)
    with (
        working_folder(),
        Endpoint(partial(answer, world), 0.1) as policy,
        Endpoint(Proposer(0, insight=0.7).answer, 0.2) as reflection,
    ):
        given: Mapping[str, Any] = {
            "model": "policy",
            "base_url": policy.url,
            "reflection_model": "reflection",
            "reflection_base_url": reflection.url,
            "env_args": {"kinds": 3},
            "max_calls": 800,
            "num_val": 50,
            "seed": 0,
            "name": "planted",
        }
        observer = OnTheWay("planted with policy")
        outcome = run_search(load_config(str(ROOT / "tests" / "gepa" / "planted"), given), observer)
        assert observer.shown is not None, json.dumps(outcome.message)
        console = recorder()
        console.print(observer.shown)
        save(console.export_svg(title="whet gepa run planted -m policy -M reflection -B 800"), "gepa-live")
        search = open_search(outcome.directory)
        report = document(TEMPLATE, search.title, values(read_report(search)))
        save(top_of_report(report.replace(str(ROOT) + "/", ""), height=1080, until="Accepted"), "gepa-report")


if __name__ == "__main__":
    main()
