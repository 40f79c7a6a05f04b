"""Payloads in every text of a tenant that reaches a page of the service, shown by a real browser: none runs."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from whet.service.storage.tables import AttemptRow, DeploymentRow, RunnerRow, RunRow, Webhook

pytestmark = pytest.mark.parts


@pytest.fixture(scope="module")
def browsing() -> Any:
    """See `tests/dashboard/browser.py`."""
    path = Path(__file__).parents[2] / "dashboard" / "browser.py"
    spec = importlib.util.spec_from_file_location("dashboard_browser", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["dashboard_browser"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def chromium(browsing: Any) -> Iterator[Any]:
    with browsing.started() as browser:
        yield browser


def poison(tenants: Any, payloads: Any) -> None:
    """Payloads in rows, also in fields that no request can set so, and in the files of the run."""
    texts = payloads.PAYLOADS
    service = tenants.service
    for number, text in enumerate(texts[:40]):
        service.ok("POST", "/tokens", "ann", json={"name": text[:100], "scope": "read", "days": 1 + number})
    readme = "\n\n".join(texts)
    wheel = tenants.packages.Wheel(name="hostile-game", readme=readme)
    wheel.files[f"{wheel.info}/METADATA"] = tenants.packages.metadata("hostile-game", "1.0.0", "", readme)
    assert service.push("ann", "acme", wheel, tenants.packages.sdist("hostile-game")).status_code == 201
    service.ok("PUT", "/environments/acme/hostile-game/variables/KEY", "ann", json={"value": texts[9]})
    service.ok("POST", "/environments/acme/hostile-game/versions/1.0.0/yank", "ann", json={"reason": texts[1]})

    def change(session: Any, now: float) -> None:
        words = {"name": texts[0], "model": texts[3], "reason": texts[6], "labels": list(texts), "config": texts[9]}
        words |= {"environments": list(texts[:20])}
        session.execute(update(RunRow).where(RunRow.id == tenants.run).values(**words))
        session.execute(update(AttemptRow).values(host=texts[12], outcome=texts[15]))
        session.execute(update(DeploymentRow).values(base=texts[18], reason=texts[21]))
        session.execute(update(Webhook).values(url=f"https://a.example/{texts[24]}", events=list(texts[:4])))
        place = {"host": texts[27], "boot_id": "b", "pid": 1, "process_began": "1", "version": texts[30]}
        capacity = {"cores": 1, "memory": 1, "devices": 0, "device_memory": 0, "device_kind": texts[33]}
        times = {"started_at": now, "heartbeat_at": now, "ended_at": None}
        session.add(RunnerRow(id="f" * 16, capacity=capacity, **place, **times))

    tenants.change(change)
    folder = service.service.data / "runs" / tenants.run
    shutil.rmtree(folder / "run")
    (folder / "run").mkdir()
    payloads.write_hostile(folder / "run")
    (folder / "submission" / "config.toml").write_text(payloads.hostile_config(list(texts)))
    (folder / "attempts" / "1" / "output.log").write_text("\n".join(texts))


def urls(tenants: Any, fuzzing: Any) -> list[str]:
    """Every page of the service."""
    named = {"owner": "acme", "name": "hostile-game", "version": "1.0.0", "run": tenants.run}
    found: list[str] = []
    for route in fuzzing.routes_of(tenants.service.app):
        if route.method != "GET" or route.path.startswith(("/api/", "/data", "/static", "/index", "/files")):
            continue
        for number in ("0", "7") if "{number}" in route.path or "{step}" in route.path else ("1",):
            values = {**named, "number": number, "step": str(int(number) % 3 + 1)}
            found.append(re.sub(r"\{(\w+)(?::\w+)?\}", lambda match, v=values: v.get(match[1], "x"), route.path))
    odd = "%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
    found += [f"/runs?search={odd}", f"/login?next={odd}", f"/device?code={odd}", "/login?next=javascript:alert(1)"]
    found += [f"/compare?run={tenants.run}&run={tenants.run}", f"/environments?search={odd}", f"/runs/{odd}"]
    return list(dict.fromkeys(found))


def test_no_payload_runs_on_any_page_of_the_service(
    tenants: Any, payloads: Any, fuzzing: Any, browsing: Any, chromium: Any
) -> None:
    poison(tenants, payloads)
    with browsing.served(tenants.service.app) as address, browsing.opened(chromium) as page:
        watched = payloads.Ran(page, address)
        page.goto(f"{address}/login")
        page.fill("input[name=token]", tenants.service.tokens["ann"])
        page.press("input[name=token]", "Enter")
        page.wait_for_url(f"{address}/**")
        pages = urls(tenants, fuzzing)
        statuses = [watched.visit(f"{address}{path}") for path in pages]
        print(f"{len(payloads.PAYLOADS)} payloads, {len(pages)} pages of which {statuses.count(200)} have content")
        assert watched.signs == []
        assert statuses.count(200) >= 8, dict(zip(pages, statuses, strict=True))
        assert max(statuses) < 500, dict(zip(pages, statuses, strict=True))
        browsing.problems(page)[:] = [one for one in browsing.problems(page) if "Failed to load resource" not in one]
