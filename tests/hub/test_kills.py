"""kill -9 of the server while it is pushed to: what was acknowledged is there and whole, and nothing else is."""

from __future__ import annotations

import hashlib
import random
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

import httpx

pytestmark = pytest.mark.parts

SHORT, LONG = 2, 100


def push_until_killed(
    hub: Any, packages: Any, round_number: int, left: list[Any], enough: threading.Event, after: int
) -> dict[str, bytes]:
    """Push version after version; those that were acknowledged, with their bytes. Sets `enough` after some requests.

    The push that a kill interrupts is `left`, and is continued first in the next round.
    """
    done: dict[str, bytes] = {}
    requests = 0

    def ask(*arguments: Any, **more: Any) -> Any:
        nonlocal requests
        requests += 1
        if requests >= after:
            enough.set()
        return type(hub).__mro__[1].ask(hub, *arguments, **more)

    hub.ask = ask
    for number in range(1000):
        wheel = left.pop() if left else game(packages, round_number, number)
        try:
            continue_push(hub, wheel)
        except httpx.TransportError:
            left.append(wheel)
            return done
        done[wheel.version] = wheel.bytes()
    raise AssertionError("the server was not killed")


def kill_when(hub: Any, enough: threading.Event) -> None:
    enough.wait()
    hub.process.kill()


def game(packages: Any, round_number: int, number: int) -> Any:
    return packages.Wheel(version=f"{round_number}.{number}", code=f"X = {number}\n" + "#" * 20_000)


def continue_push(hub: Any, wheel: Any) -> None:
    """Push a version, of which a killed server may have a part, or all."""
    begun = hub.begin("ann", "ann", wheel)
    assert begun.status_code in (200, 201), begun.text
    push = begun.json()
    if push["state"] == "committed":
        return
    offset = push["files"][0]["offset"]
    answer = hub.upload("ann", push, "wheel", wheel.bytes()[offset:], offset)
    assert answer.json() == {"offset": len(wheel.bytes())}, answer.text
    answer = hub.ask("POST", f"/pushes/{push['id']}/commit", "ann")
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("kills", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
def test_acknowledged_pushes_survive_kills_and_nothing_else_is_left(
    kills: int, served: Any, packages: Any, tmp_path: Path
) -> None:
    rng = random.Random(5)
    first = served("--no-actions")
    first.user("ann")
    tokens, hub = dict(first.tokens), first
    acknowledged: dict[str, bytes] = {}
    left: list[Any] = []
    for round_number in range(kills):
        enough = threading.Event()
        after = rng.randrange(1, 16)
        killer = threading.Thread(target=kill_when, args=(hub, enough), daemon=True)
        killer.start()
        acknowledged |= push_until_killed(hub, packages, round_number, left, enough, after)
        killer.join()
        hub.end(9)
        hub = served("--no-actions")
        hub.tokens = tokens
        check(hub, acknowledged, tmp_path / "hub")
    assert hub.ok("GET", "/audit/verification", "hub-admin")["intact"] is True
    assert hub.end() == 0


def check(hub: Any, acknowledged: dict[str, bytes], data: Path) -> None:
    """All that was acknowledged can be downloaded; every file belongs to a version; no upload is left but open ones."""
    cursor: str | None = "0"
    versions = {}
    while cursor is not None:
        answer = hub.ask("GET", f"/environments/ann/word-game/versions?limit=200&cursor={cursor}", "ann")
        if answer.status_code == 404:
            break
        found = answer.json()
        versions |= {one["version"]: one for one in found["items"]}
        cursor = found["next"]
    assert acknowledged.keys() <= versions.keys()
    # A version that was committed, and whose answer the kill cut off, may be there as well: whole.
    hashes = {one["sha256"] for one in versions.values()}
    stored = {path.name: path for path in (data / "files" / "sha256").rglob("*") if path.is_file()}
    assert stored.keys() == hashes
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == name for name, path in stored.items())
    for version, wheel in list(acknowledged.items())[-3:]:
        url = versions[version]["url"].removeprefix(hub.address)
        assert hub.ask("GET", url, "ann").content == wheel
    assert list((data / "files" / "aside").iterdir()) == []
