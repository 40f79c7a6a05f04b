"""Submitting, stopping, restarting and deleting by HTTP: who may, and what is refused with which field."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from whet.hub.storage.database import database_now
from whet.service.domain import queue, runners
from whet.service.domain.submission import SubmissionRefusedError, check_file_names
from whet.system.children import began


def test_submitted_run_is_queued_and_seen_by_its_owner_alone(service: Any) -> None:
    run = service.submit("ann", name="first", needs={"cores": 2, "memory": 1e9})
    assert (run["state"], run["owner"], run["user"], run["place"]) == ("queued", "ann", "ann", 1)
    assert run["may"] == ["stop", "delete"]
    assert (run["environments"], run["max_steps"], run["model"]) == (["reverse-text"], 2, "whet/tiny")
    assert "no runner is alive" in run["reason"]
    assert [one["id"] for one in service.ok("GET", "/runs", "ann")["items"]] == [run["id"]]
    assert service.ok("GET", f"/runs/{run['id']}", "ann")["name"] == "first"
    assert service.ok("GET", f"/runs/{run['id']}/config", "ann").text.startswith("max_steps = 2")
    assert service.ok("GET", "/runs", "bob")["items"] == []
    for method, path in (
        ("GET", ""),
        ("GET", "/config"),
        ("POST", "/stop"),
        ("DELETE", ""),
        ("GET", f"/files/{'a' * 64}"),
    ):
        missing = service.refused(404, "not_found", method, f"/runs/0123456789abcdef{path}", "bob")
        hidden = service.refused(404, "not_found", method, f"/runs/{run['id']}{path}", "bob")
        assert hidden["message"].replace(run["id"], "0123456789abcdef") == missing["message"]
    service.refused(401, "unauthenticated", "GET", "/runs")
    service.refused(401, "unauthenticated", "POST", "/runs", json=service.body("ann"))


def test_the_same_key_is_the_same_run(service: Any) -> None:
    body = service.body("ann")
    first = service.ask("POST", "/runs", "ann", json=body)
    again = service.ask("POST", "/runs", "ann", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    service.refused(409, "conflict", "POST", "/runs", "ann", json={**body, "config": body["config"] + "\n"})
    assert service.ask("POST", "/runs", "bob", json={**body, "owner": "bob"}).json()["id"] != first.json()["id"]


def test_roles_decide_who_submits_and_stops(service: Any) -> None:
    service.organisation("lab", "ann", bob="viewer", eve="member")
    service.refused(403, "forbidden", "POST", "/runs", "bob", json=service.body("lab"))
    service.refused(404, "not_found", "POST", "/runs", "eve", json=service.body("ann"))
    run = service.submit("eve", "lab")
    assert service.ok("GET", f"/runs/{run['id']}", "bob")["may"] == []
    service.refused(403, "forbidden", "POST", f"/runs/{run['id']}/stop", "bob")
    own = service.submit("ann", "lab")
    service.refused(403, "forbidden", "POST", f"/runs/{own['id']}/stop", "eve")
    assert service.ok("POST", f"/runs/{run['id']}/stop", "ann")["state"] == "stopped"
    service.token("eve", "read")
    service.refused(403, "forbidden", "POST", "/runs", "eve:read", json=service.body("lab"))
    assert service.ok("GET", f"/runs/{run['id']}", "eve:read")["may"] == []


def test_stop_restart_and_delete(service: Any) -> None:
    run = service.submit("ann")["id"]
    assert service.ok("POST", f"/runs/{run}/stop", "ann")["state"] == "stopped"
    service.refused(409, "wrong_state", "POST", f"/runs/{run}/stop", "ann")
    service.refused(409, "wrong_state", "POST", f"/runs/{run}/restart", "ann", json={"step": 3})
    restarted = service.ok("POST", f"/runs/{run}/restart", "ann", json={"step": None})
    assert (restarted["state"], restarted["place"]) == ("queued", 1)
    folder = service.service.data / "runs" / run
    (folder / "run" / "checkpoints" / "step_2").mkdir(parents=True)
    with service.service.hub.database.write() as session:
        from whet.service.storage.tables import RunRow

        row = session.get_one(RunRow, run)
        row.state, row.attempt, row.caps = "failed", 1, {"seconds": None, "tokens": 10, "cost": None}
    error = service.refused(404, "not_found", "POST", f"/runs/{run}/restart", "ann", json={"step": 3})
    assert error["message"] == f"run {run} has no checkpoint of step 3; there are: 2."
    assert service.ok("GET", f"/runs/{run}", "ann")["state"] == "failed"
    body = {"step": 2, "caps": {"tokens": 20, "seconds": 3600}}
    again = service.ok("POST", f"/runs/{run}/restart", "ann", json=body)
    assert (again["state"], again["caps"]) == ("queued", {"seconds": 3600.0, "tokens": 20, "cost": None})
    assert service.ask("DELETE", f"/runs/{run}", "ann").status_code == 204
    assert not folder.exists()
    assert service.ask("GET", f"/runs/{run}", "ann").status_code == 404
    service.refused(410, "deleted", "POST", f"/runs/{run}/stop", "ann")
    assert service.ok("GET", "/runs", "ann")["items"] == []


REFUSED = [
    ("max_steps = [", "config", "not valid TOML"),
    ("max_stepz = 3", "max_stepz", "Did you mean 'max_steps'?"),
    ("batch_size = 3\nrollouts_per_example = 2", "config", "use batch_size = 2 or 4"),
    ('runs_directory = "/tmp"', "runs_directory", "has no place in a submission"),
    ('env_file = ["/etc/passwd"]', "env_file", "submitted as secrets"),
    ('[wandb]\nenv_file = ["/etc/passwd"]', "wandb.env_file", "submitted as secrets"),
    ('model = "/etc"', "model", "neither a model's name nor among"),
    ('model = "../other"', "model", "neither a model's name nor among"),
    ('[env.args.system_prompt]\nfile = "/etc/passwd"', "env.0.args.system_prompt.file", "no relative path"),
    ('[env.args.system_prompt]\nfile = "../../x"', "env.0.args.system_prompt.file", "no relative path"),
    ('[env.args.system_prompt]\nfile = "absent.txt"', "env.0.args.system_prompt.file", "not among the submitted"),
    ('[lora]\npath = "/srv/adapter"', "lora.path", "no relative path"),
]


def test_config_that_the_command_or_the_service_refuses(service: Any) -> None:
    for config, field, reason in REFUSED:
        whole = config.startswith(("max_steps = [", "[env"))
        text = config if whole else f'{config}\n[[env]]\nid = "reverse-text"'
        problems = service.refuse("ann", f'[[env]]\nid = "reverse-text"\n{config}' if config[:4] == "[env" else text)
        assert [one[0] for one in problems] == [field], problems
        assert reason in problems[0][1]
    assert service.ok("GET", "/runs", "ann")["items"] == []


def test_environments_by_path_or_address_and_unknown_ones_are_refused(service: Any) -> None:
    for env in ("./here", "/srv/env", "https://x.test/a-1-py3-none-any.whl#sha256=" + "0" * 64):
        [(field, reason)] = service.refuse("ann", f'[[env]]\nid = "{env}"')
        assert (field, "push it to the hub" in reason) == ("environments", True)
    [(field, reason)] = service.refuse("ann", '[[env]]\nid = "no-such-thing"')
    assert (field, "is not installed on the service" in reason) == ("environments", True)


def test_each_kind_is_checked_by_its_command(service: Any) -> None:
    assert service.submit("ann", kind="evaluation", config='[[eval]]\nenvironment = "reverse-text"')["kind"] == (
        "evaluation"
    )
    assert service.submit("ann", kind="search", config='env_id = "reverse-text"\nmax_calls = 50')["kind"] == "search"
    data = service.blob("ann", b'{"prompt": "a", "completion": "b"}\n')
    sft = service.submit("ann", kind="sft", config='[data]\npath = "files/a.jsonl"', files={"files/a.jsonl": data})
    assert sft["kind"] == "sft"
    [(field, _)] = service.refuse("ann", '[[eval]]\nenvironment = "reverse-text"\nnum_exampels = 3', kind="evaluation")
    assert field == "[[eval]] 1 num_exampels"
    [(field, _)] = service.refuse("ann", 'output_directory = "/tmp"\n[[eval]]\nid = "reverse-text"', kind="evaluation")
    assert field == "output_directory"


def test_models_are_named_and_prompts_are_no_files_of_the_server(service: Any, tmp_path: Path) -> None:
    for model in ("whet/tiny:first", "org/name", "smollm2-135m"):
        config = f'base_url = "http://models.test/v1"\nmodel = "{model}"\n[[eval]]\nenvironment = "reverse-text"'
        assert service.submit("ann", kind="evaluation", config=config)["model"] == model
    weights = {"models/mine/config.json": service.blob("ann", b"{}")}
    config = 'model = "models/mine"\nenv_id = "reverse-text"'
    assert service.submit("ann", kind="search", config=config, files=weights)["model"] == "models/mine"
    (tmp_path / "hidden.txt").write_text("of the server")
    for prompt in (f'"{tmp_path}/hidden.txt"', '{file = "/etc/passwd"}', '"../../hidden.txt"', '"~/hidden.txt"'):
        config = f'env_id = "reverse-text"\nseed_prompt = {prompt}'
        [(field, _)] = service.refuse("ann", config, kind="search")
        assert field.startswith("seed_prompt"), prompt
    service.submit("ann", kind="search", config='env_id = "reverse-text"\nseed_prompt = "Answer yes/no: what?"')


def test_file_is_named_by_the_user_that_uploaded_it_alone(service: Any) -> None:
    data = service.blob("ann", b"text of ann")
    config = '[[env]]\nid = "reverse-text"\n[env.args]\nsystem_prompt = {file = "files/a.txt"}'
    [(field, reason)] = service.refuse("bob", config, files={"files/a.txt": data})
    assert (field, "was not uploaded" in reason) == ("files.files/a.txt", True)
    run = service.submit("ann", config=config, files={"files/a.txt": data})
    assert service.ok("GET", f"/runs/{run['id']}/files/{data}", "ann").content == b"text of ann"
    service.refused(404, "not_found", "GET", f"/runs/{run['id']}/files/{'b' * 64}", "ann")
    service.refused(422, "hash_mismatch", "PUT", f"/blobs/{'a' * 64}", "ann", content=b"else")
    service.refused(401, "unauthenticated", "PUT", f"/blobs/{'a' * 64}", content=b"else")


def test_names_of_files_stay_below_the_submission(service: Any) -> None:
    data = service.blob("ann", b"x")
    deep = "/".join(["a"] * 1_500)
    odd = ("config.toml/x", "config.toml/x/y", deep, "a" * 5_000, "\u00e9" * 200, "a/" + "\U0001f600" * 90)
    for name in ("/etc/x", "../x", "a/../x", "config.toml", "a//b", "a/", "~x", "a\\b", ".", *odd):
        [(field, _)] = service.refuse("ann", files={name: data})
        assert field.startswith("files.")
    with pytest.raises(SubmissionRefusedError):
        check_file_names({"\ud800": data})
    for named in ("config.toml/x", deep, "a" * 300, "\u00e9" * 200):
        for key in ("model", "[lora]\npath", "[[env]]\nid = 'reverse-text'\n[env.args.system_prompt]\nfile"):
            config = f'{key} = "{named}"' + ("" if "[[env]]" in key else "\n[[env]]\nid = 'reverse-text'")
            answer = service.ask("POST", "/runs", "ann", json=service.body("ann", config=config))
            assert answer.status_code == (201 if key == "model" else 422), (key, named[:20], answer.text[:300])


def test_secret_in_a_config_is_refused(service: Any) -> None:
    [(field, _)] = service.refuse("ann", "seed = 123456\n" + '[[env]]\nid = "reverse-text"', secrets={"A": "123456"})
    assert field == "secrets.A"
    config = '[[env]]\nid = "reverse-text"\n[env.args]\napi_key = "sk-123456789"'
    [(field, reason)] = service.refuse("ann", config)
    assert (field, "has a secret in it" in reason) == ("env.0.args.api_key", True)
    [(field, _)] = service.refuse("ann", secrets={"LD_PRELOAD": "/tmp/x.so"})
    assert field == "secrets"


def test_environment_of_the_hub_needs_an_action_that_did_not_fail(service: Any, packages: Any) -> None:
    from sqlalchemy import select, update

    from whet.hub.storage.tables import ActionRow

    assert service.push("ann", "ann", packages.Wheel(), visibility="PRIVATE").status_code == 201
    config = '[[env]]\nid = "ann/word-game@1.0.0"'
    submitted = {"config": config, "environments": ["ann/word-game@1.0.0"]}
    run = service.submit("ann", **submitted)
    assert "waits for the hub's action of ann/word-game@1.0.0" in run["reason"]
    assert run["place"] is None
    assert service.submit("ann", skip_action_check=True, **submitted)["place"] == 1

    def outcome(state: str) -> None:
        with service.service.hub.database.write() as session:
            session.execute(update(ActionRow).values(state=state))

    outcome("failed")
    [(field, reason)] = service.refuse("ann", **submitted)
    assert (field, "failed" in reason) == ("environments.0", True)
    service.submit("ann", skip_action_check=True, **submitted)
    claimed = claim(service)
    assert claimed is not None
    assert claimed != run["id"]
    ended = service.ok("GET", f"/runs/{run['id']}", "ann")
    assert (ended["state"], "action of ann/word-game@1.0.0 failed" in ended["reason"]) == ("failed", True)
    outcome("passed")
    assert service.submit("ann", **submitted)["place"] is not None
    [(field, reason)] = service.refuse("bob", **submitted)  # private
    assert (field, "there is no environment ann/word-game" in reason) == ("environments.0", True)
    [(field, _)] = service.refuse("ann", config)
    assert field == "environments"
    with service.service.hub.database.read() as session:
        assert len(list(session.scalars(select(ActionRow)))) == 1


def test_what_a_run_uses_of_the_machine_is_shown(service: Any) -> None:
    run = service.submit("ann")["id"]
    assert claim(service, started=True) == run
    found = service.ok("GET", f"/runs/{run}/progress", "ann")
    assert found["state"] == "running"
    assert os.getpid() in [one["pid"] for one in found["processes"]["processes"]]
    assert found["processes"]["memory"] > 0


def claim(service: Any, *, started: bool = False) -> str | None:
    """The run that a new runner starts; `started`: it is this process."""
    with service.service.hub.database.write() as session:
        now = database_now(session)
        identity = {"host": "box", "boot_id": "1", "pid": 1, "process_began": "1", "version": "0"}
        runner = runners.announce(session, now, capacity={"cores": 4, "memory": 1 << 40}, **identity)
        found = queue.claim(session, runner, now)
        if found is not None and started:
            assert queue.started(session, found.held, now, pid=os.getpid(), process_began=began(os.getpid()))
        return None if found is None else found.held.run


def test_list_is_filtered_and_paged(service: Any) -> None:
    ids = [service.submit("ann", name=f"run-{number}")["id"] for number in range(5)]
    service.ok("POST", f"/runs/{ids[0]}/stop", "ann")
    found = service.ok("GET", "/runs?limit=2", "ann")
    assert [one["id"] for one in found["items"]] == ids[:2:-1]
    seen = [one["id"] for one in found["items"]]
    while found["next"]:
        found = service.ok("GET", f"/runs?limit=2&cursor={found['next']}", "ann")
        seen += [one["id"] for one in found["items"]]
    assert seen == ids[::-1]
    assert [one["id"] for one in service.ok("GET", "/runs?state=stopped", "ann")["items"]] == [ids[0]]
    assert [one["id"] for one in service.ok("GET", "/runs?search=RUN-3", "ann")["items"]] == [ids[3]]
    assert service.ok("GET", "/runs?kind=sft", "ann")["items"] == []
    service.refused(422, "invalid", "GET", "/runs?cursor=nonsense", "ann")
