"""Every route of the service with odd input: no answer of 5xx, and never a word of another tenant."""

from __future__ import annotations

from typing import Any

import pytest

QUICK, PART, MANY = 250, 2_000, 22_000
RENEWED = 250
ENDLESS = ("/events",)


def sessions(service: Any, users: tuple[str, ...]) -> list[dict[str, str]]:
    """Headers of requests with the token of each user, and with a session of pages."""
    found = [{"Authorization": f"Bearer {service.tokens[user]}"} for user in users]
    for user in users:
        service.client.cookies.clear()
        answer = service.client.post(
            "/login",
            data={"token": service.tokens[user]},
            headers={"Origin": "http://service.test"},
            follow_redirects=False,
        )
        assert answer.status_code == 303, answer.text
        (cookie,) = [f"{name}={value}" for name, value in service.client.cookies.items()]
        found.append({"Cookie": cookie, "Origin": "http://service.test"})
    service.client.cookies.clear()
    return found


@pytest.mark.parametrize(
    "count",
    [QUICK, pytest.param(PART, marks=pytest.mark.parts), pytest.param(MANY, marks=pytest.mark.long)],
)
def test_no_route_fails_or_shows_another_tenants_things(count: int, tenants: Any, fuzzing: Any) -> None:
    service, canary, secret = tenants.service, tenants.module.CANARY, tenants.module.SECRET
    credentials = sessions(service, ("eve", "bob"))
    # The stream of a list has nothing to name: test_events.py has what is in it.
    lists = ("/api/v1/events", "/data/events")
    routes = [route for route in fuzzing.lasting(fuzzing.routes_of(service.app)) if route.path not in lists]
    endless = [route for route in routes if route.path.endswith(ENDLESS)]
    known = tenants.ids()
    draw = fuzzing.Draw(3, [one for one in routes if one not in endless], known, credentials, "http://service.test")
    # A stream that is answered does not end: they are asked for runs of the other tenant.
    of_runs = [route for route in endless if "{run}" in route.path]
    theirs = fuzzing.Draw(4, of_runs, {**known, "run": [tenants.run, "0" * 16]}, credentials, "http://service.test")
    statuses: dict[int, int] = {}
    reached: set[str] = set()
    for number in range(count):
        if number % RENEWED == RENEWED - 1:
            tenants.renew()
            known |= tenants.ids()
        chosen = theirs if of_runs and number % 50 == 0 else draw
        method, path, more = chosen.request(number // 50 if chosen is theirs else number)
        if fuzzing.streams(path, [tenants.own]):
            continue
        service.client.cookies.clear()
        answer = service.client.request(method, path, follow_redirects=False, **more)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        if answer.status_code < 300:
            reached.add(chosen.routes[number % len(chosen.routes)].path)
        assert answer.status_code < 500, (number, method, path, more, answer.text)
        told = answer.text + str(answer.headers)
        assert canary not in told, (number, method, path, more)
        assert secret not in told, (number, method, path, more)
    assert {200, 303, 401, 403, 404, 422} <= statuses.keys(), statuses
    print(f"{count} requests on {len(routes)} routes, {len(reached)} answered: {dict(sorted(statuses.items()))}")
    assert service.ok("GET", "/audit/verification", "hub-admin")["intact"] is True
    mine = service.ok("GET", f"/runs/{tenants.run}", "ann")
    assert (mine["name"], mine["state"]) == (canary, "failed")
