"""Deploying from the page of a run's checkpoints, with forms alone."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from whet.service.storage.tables import RunRow


@pytest.fixture
def pages(service: Any) -> Any:
    """A client with ann's session."""
    http = service.hub.client
    answer = http.post("/login", data={"token": service.hub.tokens["ann"]}, follow_redirects=False)
    assert answer.status_code == 303
    return http


def test_a_checkpoint_is_deployed_by_page_and_ended(service: Any, pages: Any) -> None:
    run = service.run("ann")
    listed = pages.get(f"/runs/{run}/checkpoints").text
    (link,) = [unescape(one) for one in re.findall(r'href="([^"]*)" aria-label="deploy: step 2"', listed)]
    form = pages.get(link).text
    assert re.search(r'<option value="2" selected>2</option>', form)
    answer = pages.post("/deployments", data={"run": run, "step": "2", "name": "mine"})
    assert answer.status_code == 200
    assert answer.url.path.startswith("/deployments/")
    text = unescape(answer.text)
    for said in ("tiny:mine", "OpenAI(base_url=", "Anthropic(base_url=", "whet eval run", "step 2"):
        assert said in text, said
    (item,) = service.hub.ok("GET", "/deployments", "ann")["items"]
    assert (item["step"], item["name"]) == (2, "mine")
    assert "tiny:mine" in pages.get("/deployments").text
    refused = pages.post("/deployments", data={"run": run, "step": "2", "name": "mine"})
    assert refused.status_code == 409
    assert "has a deployment" in refused.text
    assert "Delete whet/tiny:mine?" in pages.get(f"/deployments/{item['id']}/delete").text
    pages.post(f"/deployments/{item['id']}/delete")
    assert service.hub.ok("GET", "/deployments", "ann")["items"] == []


def test_a_run_is_restarted_from_a_checkpoint_by_page(service: Any, pages: Any) -> None:
    run = service.run("ann")
    with service.database.write() as session:
        row = session.get(RunRow, run)
        row.state, row.attempt = "finished", 1
    form = pages.get(f"/runs/{run}/restart?step=2").text
    assert re.search(r'<option value="2" selected>2</option>', form)
    answer = pages.post(f"/runs/{run}/restart", data={"step": "2"})
    assert answer.status_code == 200, re.findall(r"alert.><p>([^<]*)", answer.text)
    assert service.hub.ok("GET", f"/runs/{run}", "ann")["state"] == "queued"


def test_another_users_deployment_is_not_there(service: Any, pages: Any) -> None:
    run = service.run("bob")
    made = service.hub.ok("POST", "/deployments", "bob", json={"run": run, "step": 2, "name": "his"})
    for path in (f"/deployments/{made['id']}", f"/deployments/{made['id']}/delete", f"/deployments/new?run={run}"):
        assert pages.get(path).status_code == 404
    assert pages.post(f"/deployments/{made['id']}/delete").status_code == 404
    assert pages.post("/deployments", data={"run": run}).status_code == 404
    assert "his" not in re.findall(r">([^<]*)</a>", pages.get("/deployments").text)
