"""The routes of deployments: what may be deployed, by which user, under which name; and links that lead elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from whet.cli.main import main

FILES = ("adapter.safetensors", "manifest.json")


def test_a_deployment_as_it_is_shown(service: Any) -> None:
    run = service.run(name="My words!")
    made = service.deploy("ann", run)
    expected = {
        "owner": "ann",
        "user": "ann",
        "run": run,
        "step": 4,
        "name": "My-words-4",
        "model": "whet/tiny:My-words-4",
        "adapter": True,
        "state": "pending",
        "reason": "",
        "url": None,
        "last_used_at": None,
        "requests": 0,
        "input_tokens": 0,
        "output_tokens": 0,
        "health": None,
    }
    assert {key: made[key] for key in expected} == expected
    assert made.keys() == {*expected, "id", "created_at"}
    assert service.hub.ok("GET", f"/deployments/{made['id']}", "ann") == made
    assert service.hub.ok("GET", "/deployments", "ann")["items"] == [made]
    entries = service.hub.ok("GET", "/owners/ann/audit", "ann")["items"]
    assert [one["action"] for one in entries if one["target"] == made["id"]] == ["deployment.create"]


def test_what_cannot_be_deployed_is_refused_in_words(service: Any) -> None:
    refused: list[tuple[str, dict[str, Any], int, str, str]] = [
        ("lora", {"step": 3}, 404, "not_found", "there are: 2, 4"),
        ("none", {}, 409, "conflict", "no checkpoint yet"),
        ("lora", {"name": "a:b"}, 422, "invalid", "cannot be called"),
        ("lora", {"name": "../x"}, 422, "invalid", "cannot be called"),
        ("lora", {"name": "x" * 65}, 422, "invalid", "64"),
        ("lora", {"step": -1}, 422, "invalid", "step"),
        ("lora", {"other": 1}, 422, "invalid", "other"),
    ]
    runs = {kind: service.run(kind=kind) for kind in ("lora", "none")}
    for kind, body, status, code, words in refused:
        json = {"run": runs[kind], **body}
        error = service.hub.refused(status, code, "POST", "/deployments", "ann", json=json)
        assert words in error["message"], body
    assert not (service.data / "deployments").exists()


def test_an_evaluation_trains_no_weights(service: Any) -> None:
    run = service.run(**{"kind": "lora"})
    with service.database.write() as session:
        from whet.service.storage.tables import RunRow

        session.get_one(RunRow, run).kind = "evaluation"
    service.hub.refused(422, "invalid", "POST", "/deployments", "ann", json={"run": run})


def test_a_name_is_one_of_its_owner_until_it_is_deleted(service: Any) -> None:
    run = service.run()
    made = service.deploy("ann", run, name="a")
    service.hub.refused(409, "name_taken", "POST", "/deployments", "ann", json={"run": run, "name": "a"})
    assert [path.name for path in (service.data / "deployments").iterdir()] == [made["id"]]
    service.deploy("bob", service.run(owner="bob"), name="a")
    service.hub.ok("DELETE", f"/deployments/{made['id']}", "ann")
    service.hub.refused(404, "not_found", "DELETE", f"/deployments/{made['id']}", "ann")
    service.deploy("ann", run, name="a")


def test_roles(service: Any) -> None:
    members = {"bob": "member", "eve": "viewer"}
    service.hub.organisation("team", "ann", **members)
    run = service.run(owner="team", user="ann")
    own = service.run()
    for user in (None, "bob"):
        answer = service.hub.ask("POST", "/deployments", user, json={"run": own})
        assert answer.status_code == (401 if user is None else 404)
    missing = service.hub.refused(404, "not_found", "POST", "/deployments", "bob", json={"run": "0" * 16})
    hidden = service.hub.refused(404, "not_found", "POST", "/deployments", "bob", json={"run": own})
    assert hidden["message"].replace(own, "0" * 16) == missing["message"]
    service.hub.refused(403, "forbidden", "POST", "/deployments", "eve", json={"run": run})
    service.hub.token("bob", "read")
    service.hub.refused(403, "forbidden", "POST", "/deployments", "bob:read", json={"run": run})
    by_ann, by_bob = (service.deploy(user, run, name=user)["id"] for user in ("ann", "bob"))
    assert len(service.hub.ok("GET", "/deployments?owner=team", "eve")["items"]) == 2
    service.hub.refused(403, "forbidden", "DELETE", f"/deployments/{by_ann}", "bob")
    service.hub.refused(403, "forbidden", "DELETE", f"/deployments/{by_bob}", "eve")
    service.hub.ok("DELETE", f"/deployments/{by_bob}", "bob")
    private = service.deploy("ann", own)["id"]
    service.hub.refused(404, "not_found", "GET", f"/deployments/{private}", "bob")
    service.hub.refused(404, "not_found", "DELETE", f"/deployments/{private}", "bob")
    service.hub.refused(404, "not_found", "GET", "/deployments?owner=ann", "bob")
    assert [one["id"] for one in service.hub.ok("GET", "/deployments", "bob")["items"]] == [by_ann]


def test_a_link_in_a_run_leads_to_no_file_of_others(service: Any) -> None:
    """The run's own code can put links there."""
    other = service.run(owner="bob")
    for path in ("", "checkpoints", "checkpoints/step_4", *(f"checkpoints/step_4/{name}" for name in FILES)):
        run = service.run()
        mine, target = (service.data / "runs" / one / "run" / path for one in (run, other))
        assert target.exists()
        if mine.is_dir():
            shutil.rmtree(mine)
        else:
            mine.unlink()
        os.symlink(target, mine)
        answer = service.hub.ask("POST", "/deployments", "ann", json={"run": run, "step": 4})
        assert answer.status_code in (404, 409), (path, answer.text)
    assert list((service.data / "deployments").glob("*")) == []


def test_the_commands(
    service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = service.run(name="first")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("WHET_HUB_TOKEN", service.hub.tokens["ann"])

    def whet(*words: str) -> tuple[int, str, str]:
        code = main(["deployments", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    with sys.modules["hub_running"].listening(service.hub.app) as hub:
        monkeypatch.setenv("WHET_HUB", hub)
        assert whet("list") == (0, "no deployments. Make one with: whet deployments create RUN\n", "")
        code, out, err = whet("create", "first", "--step", "2")
        assert (code, out) == (0, "whet/tiny:first-2  pending\n")
        assert "whet service deployments" in err
        made = json.loads(whet("create", run, "--name", "best", "--json")[1])
        assert (made["model"], made["step"]) == ("whet/tiny:best", 4)
        assert whet("create", run, "--name", "best")[0] == 2
        assert "no run 'other'" in whet("create", "other")[2]
        listed = whet("list")[1]
        assert all(model in listed for model in ("whet/tiny:first-2", "whet/tiny:best", made["id"]))
        assert whet("delete", "best", "-y") == (0, "deleted whet/tiny:best\n", "")
        assert "there is no deployment 'best'" in whet("delete", "best", "-y")[2]


def test_the_run_cannot_change_what_is_served(service: Any) -> None:
    from whet.service.deployments.folder import DeploymentFolder
    from whet.service.deployments.prepare import prepare

    run = service.run()
    folder = DeploymentFolder(service.data, service.deploy("ann", run)["id"])
    prepare(folder)
    assert not folder.checkpoint.exists()
    weights = folder.weights / "adapter_model.safetensors"
    before = weights.read_bytes()
    for path in (service.data / "runs" / run).rglob("*.safetensors"):
        with path.open("r+b") as file:
            file.write(b"x" * 100)
    assert weights.read_bytes() == before
