"""Payloads in every text of a run that reaches a page, shown by a real browser: none of them runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import Runs, rollout

pytestmark = pytest.mark.parts
NUMBERS = ("run", "number", "step")


def hostile_runs(runs: Runs, payloads: Any) -> None:
    """Runs with all payloads in all of their files, and in their names."""
    texts = list(payloads.PAYLOADS)
    payloads.write_hostile(runs.training("hostile"))
    for number in range(0, len(texts), 12):
        config = payloads.hostile_config(texts[number : number + 12])
        runs.training(f"named-{number}", config=config, last_error=texts[number])
    fields = {"env_id": texts[5], "model": texts[6], "config": {"x": texts}, "env_args": {texts[7]: texts[8]}}
    evaluated = [rollout(number, 1.0, text, error=None, stop_condition=text) for number, text in enumerate(texts)]
    runs.evaluation(evaluated, name="hostile", **fields)


def urls(app: Any, fuzzing: Any, ids: dict[str, str], address: str) -> list[str]:
    """Every page of the application, for the hostile run, its rollouts and an evaluation."""
    found: list[str] = []
    for route in fuzzing.routes_of(app):
        if route.method != "GET" or route.path.startswith(("/api/", "/data", "/static")):
            continue
        if "{" not in route.path:
            found.append(route.path)
            continue
        for run in ids.values():
            for number in ("0", "1", "7"):
                values = {"run": run, "number": number, "step": str(int(number) % 3 + 1)}
                found.append(
                    re.sub(r"\{(\w+)(?::\w+)?\}", lambda match, values=values: values.get(match[1], "x"), route.path)
                )
    first, second = [*ids.values()][:2]
    found += [f"/compare?run={first}&run={second}", "/runs?search=%3Cscript%3Ealert(1)%3C/script%3E"]
    return [f"{address}{path}" for path in dict.fromkeys(found)]


def test_payloads_on_a_page_that_takes_them_for_markup_are_noticed(chromium: Any, payloads: Any) -> None:
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    from .browser import opened, problems, served

    def unsafe(request: Any) -> HTMLResponse:
        return HTMLResponse(f"<p title='x'>{payloads.PAYLOADS[int(request.path_params['number'])]}</p>")

    def guarded(request: Any) -> HTMLResponse:
        answer = unsafe(request)
        answer.headers["Content-Security-Policy"] = "default-src 'self'; script-src 'self'"
        return answer

    routes = [Route("/unsafe/{number}", unsafe), Route("/guarded/{number}", guarded)]
    with served(Starlette(routes=routes)) as address, opened(chromium) as page:
        watched = payloads.Ran(page, address)
        for path in ("unsafe", "guarded"):
            for number in (0, 1, 2, 9, 10):  # a dialog, a variable, a request; and an attribute
                watched.signs.clear()
                watched.visit(f"{address}/{path}/{number}")
                assert watched.signs, (path, number)
        problems(page).clear()


def test_no_payload_runs_on_any_page(runs: Runs, chromium: Any, fuzzing: Any, payloads: Any, tmp_path: Path) -> None:
    from whet.dashboard.app import create_app
    from whet.dashboard.call import Site
    from whet.dashboard.data.dashboard_data import DashboardData
    from whet.dashboard.folders import FolderLibrary

    from .browser import opened, problems, served

    assert len(payloads.PAYLOADS) >= 100
    hostile_runs(runs, payloads)
    library = FolderLibrary([runs.folder / "runs", runs.folder / "outputs"])
    app = create_app(DashboardData(library), Site())
    with served(app) as address, opened(chromium) as page:
        listed = page.request.get(f"{address}/api/v1/runs?limit=200").json()["items"]
        ids = {
            "training": next(one["id"] for one in listed if one["kind"] == "training" and one["max_steps"] == 3),
            "evaluation": next(one["id"] for one in listed if one["kind"] == "evaluation"),
        }
        watched = payloads.Ran(page, address)
        statuses = [watched.visit(url) for url in urls(app, fuzzing, ids, address)]
        print(f"{len(payloads.PAYLOADS)} payloads, {len(statuses)} pages of which {statuses.count(200)} have content")
        assert watched.signs == []
        assert 200 in statuses
        assert max(statuses) < 500
        # A page that is not there says so on the console; everything else there is a fault.
        problems(page)[:] = [one for one in problems(page) if "Failed to load resource" not in one]
