"""Models of the training API in a service's list of runs."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("fastapi")

from whet.hub.storage.database import database_now
from whet.service.storage.tables import RunRow
from whet.tinker.storage.tables import TinkerModel, TinkerSession


def add_model(service: Any, owner: str, at: float, name: str | None = None, **more: Any) -> str:
    """A model of a client that was heard of `seen` seconds ago; the id of its run."""
    with service.service.hub.database.write() as session:
        now, id = database_now(session), f"{int(at):016x}"
        values = {"owner": owner, "created_at": at}
        details = {"display_name": more.get("display_name")}
        session.add(TinkerSession(id=id, details=details, seen_at=now - more.get("seen", 0.0), **values))
        session.flush()
        spec = {"rank": 8, "seed": 0, "train_unembed": True, "train_mlp": True, "train_attn": True}
        metadata = None if name is None else {"name": name}
        sequence = {"applied_seq": 0, "state_seq": 0, "used_at": at, "unloaded_at": more.get("ended")}
        model = TinkerModel(id=f"{id}:train:0", session_id=id, base_model="whet/tiny", spec=spec, **values, **sequence)
        model.user_metadata = metadata
        session.add(model)
    return f"{id}-train-0"


def test_list_has_models_and_runs_by_time(service: Any) -> None:
    first, second = service.submit("ann")["id"], service.submit("ann")["id"]
    with service.service.hub.database.write() as session:
        session.get_one(RunRow, first).submitted_at = 200.0
        session.get_one(RunRow, second).submitted_at = 400.0
    models = [add_model(service, "ann", at) for at in (100.0, 300.0, 500.0)]
    add_model(service, "bob", 350.0)
    listed, cursor = [], ""
    for _ in range(5):
        page = service.ok("GET", f"/runs?limit=1{cursor}", "ann")
        listed += [one["id"] for one in page["items"]]
        cursor = f"&cursor={page['next']}"
    assert page["next"] is None
    assert listed == [models[2], second, models[1], first, models[0]]


def test_model_is_a_run_of_its_user_alone(service: Any) -> None:
    id = add_model(service, "ann", time.time(), "first\n\x1b[31mmodel")
    found = service.ok("GET", f"/runs/{id}", "ann")
    assert (found["name"], found["user"], found["state"], found["may"]) == ("first [31mmodel", "ann", "running", [])
    service.refused(404, "not_found", "GET", f"/runs/{id}", "bob")
    service.refused(404, "not_found", "POST", f"/runs/{id}/stop", "ann")
    assert service.ok("GET", "/runs", "bob")["items"] == []


def test_states_of_models_can_be_asked_for(service: Any) -> None:
    known = {
        "running": add_model(service, "ann", 1.0, "learns"),
        "stopped": add_model(service, "ann", 2.0, seen=3600.0),
        "finished": add_model(service, "ann", 3.0, ended=4.0, display_name="nightly"),
    }
    for state, id in known.items():
        [one] = service.ok("GET", f"/runs?state={state}&kind=training", "ann")["items"]
        assert (one["id"], one["state"]) == (id, state)
    for search, state in (("LEARNS", "running"), ("night", "finished"), (known["stopped"], "stopped")):
        [one] = service.ok("GET", f"/runs?search={search}", "ann")["items"]
        assert one["id"] == known[state]
    for empty in ("state=queued", "kind=evaluation", "search=%25"):
        assert service.ok("GET", f"/runs?{empty}", "ann")["items"] == []
