"""Who may use a deployment: tokens of the hub, owners, revocation; and what others learn of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest


@pytest.fixture
def shared(service: Any) -> Any:
    """ann's own deployment, and one of the organisation `team`, where bob is a viewer."""
    service.hub.organisation("team", "ann", bob="viewer")
    service.deploy("ann", service.run(), name="own")
    service.deploy("ann", service.run(owner="team", user="ann"), name="both")
    return service


def test_a_key_that_is_missing_wrong_revoked_or_expired_is_401_on_every_interface(shared: Any) -> None:
    shared.hub.token("ann", "read")
    old = shared.hub.tokens["ann:read"]
    made = shared.hub.token("ann", "read")
    shared.hub.ok("DELETE", f"/tokens/{made['id']}", "ann")
    revoked = shared.hub.tokens["ann:read"]
    with shared.database.write() as session:
        from whet.hub.domain.access import digest_of
        from whet.hub.storage.tables import TokenRow

        session.query(TokenRow).where(TokenRow.digest == digest_of(old)).update({"expires_at": 1.0})

    async def go() -> Any:
        async with shared.serving() as serving:
            await serving.reconcile()
            found = []
            for key in (None, "whet_wrong", "\udc80", revoked, old):
                for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
                    headers = {} if key is None else {"x-api-key": key.encode("utf-8", "surrogateescape")}
                    answer = await serving.request("POST", path, json={"model": "whet/tiny:own"}, key=headers)
                    found.append(answer.status_code)
                found.append((await serving.request("GET", "/v1/models", key=headers)).status_code)
            return found

    assert set(asyncio.run(go())) == {401}


def test_what_a_key_may_not_see_answers_as_what_does_not_exist(shared: Any) -> None:
    async def go() -> Any:
        async with shared.serving() as serving:
            await serving.reconcile()
            bodies = []
            for user, model in (("eve", "whet/tiny:own"), ("eve", "whet/tiny:gone"), ("bob", "whet/tiny:own")):
                json = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
                for path in ("/v1/chat/completions", "/v1/messages"):
                    answer = await serving.request("POST", path, user, json=json)
                    bodies.append((answer.status_code, answer.text.replace(model, "M")))
            return bodies, {user: await serving.models(user) for user in ("ann", "bob", "eve")}

    bodies, models = asyncio.run(go())
    assert bodies[0:2] == bodies[2:4]
    assert {status for status, _ in bodies} == {404}
    assert "model_not_found" in bodies[0][1]
    assert models == {"ann": ["whet/tiny:both", "whet/tiny:own"], "bob": ["whet/tiny:both"], "eve": []}


def test_a_revoked_token_and_a_lost_membership_end_within_a_second(shared: Any) -> None:
    made = shared.hub.token("ann", "read")

    async def go() -> Any:
        async with shared.serving() as serving:
            await serving.reconcile()
            before = [
                isinstance(await serving.ask(*one), list)
                for one in (("ann:read", "whet/tiny:own"), ("bob", "whet/tiny:both"))
            ]
            shared.hub.ok("DELETE", f"/tokens/{made['id']}", "ann")
            shared.hub.ok("DELETE", "/owners/team/members/bob", "ann")
            serving.now += 0.99
            after = [(await serving.ask(*one))[0] for one in (("ann:read", "whet/tiny:own"), ("bob", "whet/tiny:both"))]
            return before, after

    assert asyncio.run(go()) == ([True, True], [401, 404])


@pytest.mark.parts
def test_equal_names_of_two_owners_are_told_apart(service: Any, deploying: Any, checkpoints: Any) -> None:
    for organisation in ("one", "two"):
        service.hub.organisation(organisation, "ann", bob="viewer")
        step = 2 if organisation == "one" else 4
        service.deploy("ann", service.run(owner=organisation, user="ann"), name="same", step=step)
    service.deploy("bob", service.run(owner="bob"), name="same", step=2)

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            asked = ("whet/tiny:same", "whet/tiny:one/same", "whet/tiny:two/same")
            return (
                await serving.models("ann"),
                [await serving.ask("ann", model) for model in asked],
                await serving.ask("bob", "whet/tiny:same"),
            )

    models, answers, own = asyncio.run(go())
    of = {step: deploying.ids_of(checkpoints / f"merged_{step}") for step in (2, 4)}
    assert models == ["whet/tiny:one/same", "whet/tiny:two/same"]
    assert answers == [(400, None), of[2], of[4]]
    assert own == of[2]  # a user's own comes first


def test_while_one_is_pending_or_the_database_is_away_the_answer_is_503(service: Any, monkeypatch: Any) -> None:
    service.deploy("ann", service.run(), name="a")

    async def go() -> Any:
        async with service.serving() as serving:
            hold = asyncio.Event()

            async def export(folder: Any) -> None:
                await hold.wait()

            serving.deployments._export = export
            await serving.deployments.reconcile()
            pending = await serving.ask("ann", "whet/tiny:a")
            service.database.engine.dispose()
            monkeypatch.setattr(service.database, "read", lambda: (_ for _ in ()).throw(busy()))
            serving.now += 10
            return pending, await serving.ask("ann", "whet/tiny:a")

    def busy() -> Exception:
        from whet.hub.errors import HubError

        return HubError("busy", "the hub's database is busy")

    assert asyncio.run(go()) == ((503, "deployment_pending"), (503, None))


def test_the_routes_of_one_who_runs_a_server_are_not_there(shared: Any) -> None:
    async def go() -> Any:
        async with shared.serving() as serving:
            paths = (("GET", "/metrics"), ("POST", "/v1/load_lora_adapter"), ("POST", "/v1/unload_lora_adapter"))
            return [(await serving.request(method, path, "ann", json={})).status_code for method, path in paths]

    assert asyncio.run(go()) == [404, 404, 404]
