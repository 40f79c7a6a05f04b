"""Payloads in every text of a run that reaches a page, shown by a real browser: none of them runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from whet.system.files import json_line

from .conftest import Runs, rollout, trained

pytestmark = pytest.mark.parts
NUMBERS = ("run", "number", "step")


def hostile_config(texts: list[str]) -> str:
    """A config whose values are payloads."""
    lines = [f"name = {json.dumps(texts[0])}", f"model = {json.dumps(texts[1])}", "max_steps = 3", "batch_size = 4"]
    for number, text in enumerate(texts):
        lines += ["[[env]]", f"id = {json.dumps(text)}", "[env.args]", f"x{number} = {json.dumps(text)}"]
    return "\n".join(lines) + "\n"


def row_of(text: str, group: int, **more: Any) -> dict[str, Any]:
    """A rollout with a payload in each of its texts."""
    messages = {
        "prompt": [{"role": "system", "content": text}, {"role": text, "content": [{"type": "text", "text": text}]}],
        "completion": [
            {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [
                json.dumps({"id": text, "name": text, "arguments": json.dumps({text: text})})]},
            {"role": "tool", "tool_call_id": text, "content": text},
        ],
    }  # fmt: skip
    row = trained(str(group), 1.0, 0.5)
    error = {"error": text, "error_chain_repr": text, "error_chain_str": text}
    return {
        **row,
        **messages,
        "environment": text,
        "answer": text,
        "info": {text: text},
        "metrics": {text: 0.5},
        "stop_condition": text,
        "error": error if group % 2 else None,
        **more,
    }


def hostile_run(runs: Runs, payloads: tuple[str, ...]) -> None:
    """Runs with all payloads in all of their files."""
    texts = list(payloads)
    rows = [row_of(text, number) for number, text in enumerate(texts)]
    metrics = [
        {"step": step, "reward/mean": 0.5, **{f"reward/{text}": 0.5 * step for text in texts}, texts[0]: 1.0}
        for step in (1, 2, 3)
    ]
    status = {"last_error": texts[3], "last_note": texts[4], "stalled": texts[:3], "phase": texts[5], "max_steps": 3}
    run = runs.training(
        "hostile", steps=[rows[:60], rows[60:], rows[:8]], metrics=metrics, config=hostile_config(texts), **status
    )
    lines = [f"2026-11-21T17:40:02+0000 {level} {text}" for text in texts for level in ("INFO", "WARNING")]
    (run / "logs").mkdir()
    (run / "logs" / "run.log").write_text("\n".join(lines) + "\n")
    errors = [{"step": 1, "environment": text, "error": text, "rollouts": 1} for text in texts]
    (run / "errors.jsonl").write_text("".join(map(json_line, errors)))
    evaluations = [
        {"step": 1, "moment": "during", "version": 1, "environment": text, "sampling": text, "metrics": {text: 0.5}}
        for text in texts
    ]
    (run / "evals.jsonl").write_text("".join(map(json_line, evaluations)))
    (run / "environments.json").write_text(
        json.dumps({"trained": {text: {"name": text, "version": text} for text in texts}, "evaluated": {}})
    )
    for number in range(0, len(texts), 12):  # names of runs
        runs.training(f"named-{number}", config=hostile_config(texts[number : number + 12]), last_error=texts[number])
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


def settle(page: Any) -> None:
    """Wait for the scripts of the page, and open what can be opened."""
    page.wait_for_load_state("load")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.evaluate("document.querySelectorAll('input, button, a').forEach((one) => { one.focus(); })")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


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
                watched.visit(f"{address}/{path}/{number}", settle)
                assert watched.signs, (path, number)
        problems(page).clear()


def test_no_payload_runs_on_any_page(runs: Runs, chromium: Any, fuzzing: Any, payloads: Any, tmp_path: Path) -> None:
    from whet.dashboard.app import create_app
    from whet.dashboard.call import Site
    from whet.dashboard.data.dashboard_data import DashboardData
    from whet.dashboard.folders import FolderLibrary

    from .browser import opened, problems, served

    assert len(payloads.PAYLOADS) >= 100
    hostile_run(runs, payloads.PAYLOADS)
    library = FolderLibrary([runs.folder / "runs", runs.folder / "outputs"])
    app = create_app(DashboardData(library), Site())
    with served(app) as address, opened(chromium) as page:
        listed = page.request.get(f"{address}/api/v1/runs?limit=200").json()["items"]
        ids = {
            "training": next(one["id"] for one in listed if one["kind"] == "training" and one["max_steps"] == 3),
            "evaluation": next(one["id"] for one in listed if one["kind"] == "evaluation"),
        }
        watched = payloads.Ran(page, address)
        statuses = [watched.visit(url, settle) for url in urls(app, fuzzing, ids, address)]
        assert watched.signs == []
        assert 200 in statuses
        assert max(statuses) < 500
        # A page that is not there says so on the console; everything else there is a fault.
        problems(page)[:] = [one for one in problems(page) if "Failed to load resource" not in one]
