"""Logins with a code: what one address, one user and one code may try, and that others are not kept out by it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from whet.hub.domain import devices
from whet.hub.domain.hub import Attempts


def from_address(hub: Any, address: str) -> None:
    """The next requests come from this address."""
    hub.client = TestClient(hub.client.app, base_url="http://hub.test", client=(address, 50_000))


def begin(hub: Any) -> Any:
    return hub.ok("POST", "/device/code", json={"client": "x"})


def approve(hub: Any, code: str, user: str = "ann") -> Any:
    return hub.ask("POST", "/device/approval", user, json={"user_code": code, "approve": True})


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["fd00::1", "fd00::2", "fd00::abcd:1", "fd00::ffff:ffff:ffff"]])
def test_logins_of_one_address_keep_no_other_out(hub: Any, addresses: list[str]) -> None:
    for number in range(devices.BEGUN):
        from_address(hub, addresses[number % len(addresses)])
        begin(hub)
    error = hub.refused(429, "too_many", "POST", "/device/code", json={"client": "x"})
    assert error["message"] == "too many logins of this address in 10 minutes. Try again in 10 minutes."
    from_address(hub, "10.0.0.2")
    assert approve(hub, begin(hub)["user_code"]).status_code == 200
    from_address(hub, addresses[0])
    hub.ahead += 601
    begin(hub)


def test_wrong_codes_of_a_user_meet_a_limit(hub: Any) -> None:
    right = begin(hub)["user_code"]
    answers = [approve(hub, f"BCDF-{number:04}") for number in range(300)]
    assert {answer.status_code for answer in answers[: devices.WRONG]} == {404}
    assert {answer.status_code for answer in answers[devices.WRONG :]} == {429}
    assert approve(hub, right).status_code == 429
    assert approve(hub, right, "bob").status_code == 200
    hub.ahead += 601
    assert approve(hub, begin(hub)["user_code"]).status_code == 200


def test_wrong_codes_on_the_page_count_too(hub: Any) -> None:
    hub.client.post("/login", data={"token": hub.tokens["ann"]}, headers={"Origin": "http://hub.test"})
    for number in range(devices.WRONG):
        given = {"params": {"code": f"BCDF-{number:04}"}}
        how = given if number % 2 else {"data": {"code": "X", "decision": "approve"}}
        method = "GET" if number % 2 else "POST"
        assert hub.client.request(method, "/device", headers={"Origin": "http://hub.test"}, **how).status_code == 404
    assert hub.client.get("/device", params={"code": "BCDF-GHJK"}).status_code == 429
    assert approve(hub, begin(hub)["user_code"]).status_code == 429


def test_wrong_codes_of_many_users_of_one_address_meet_a_limit(hub: Any) -> None:
    for number in range(devices.WRONG_OF_ADDRESS):
        assert approve(hub, f"BCDF-{number:04}", ("ann", "bob", "eve", "hub-admin")[number % 4]).status_code == 404
    assert approve(hub, begin(hub)["user_code"], "ann").status_code == 429
    from_address(hub, "10.0.0.2")
    assert approve(hub, begin(hub)["user_code"], "ann").status_code == 200


def test_questions_about_a_login_meet_a_limit(hub: Any) -> None:
    first, second = begin(hub), begin(hub)
    asked = [hub.ask("POST", "/device/token", json={"device_code": first["device_code"]}) for _ in range(300)]
    assert {answer.status_code for answer in asked[: devices.POLLS]} == {400}
    assert {answer.status_code for answer in asked[devices.POLLS :]} == {429}
    hub.refused(400, "authorization_pending", "POST", "/device/token", json={"device_code": second["device_code"]})
    guesses = [hub.ask("POST", "/device/token", json={"device_code": f"guess-{number}"}) for number in range(50)]
    assert guesses[0].json()["error"]["code"] == "expired_token"
    assert guesses[-1].status_code == 429


def test_attempts_are_forgotten_and_take_bounded_memory() -> None:
    attempts = Attempts(window_s=10.0, most_keys=3)
    for at in range(5):
        attempts.add("a", float(at))
    assert attempts.count("a", 9.0) == 5
    assert attempts.count("a", 12.5) == 2
    for key in "bcd":
        attempts.add(key, 5.0)
    assert (attempts.count("a", 5.0), attempts.count("d", 5.0), attempts.count("never", 5.0)) == (0, 1, 0)
