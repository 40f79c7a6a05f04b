"""Webhooks from a change of a run's state to a signed POST, over real connections on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from sqlalchemy import select, update

from whet.hub.storage.database import database_now
from whet.service.api.webhooks import Event
from whet.service.domain.queue import finish
from whet.service.storage.tables import Delivery, Webhook
from whet.service.webhooks import deliveries, sender
from whet.service.webhooks.addresses import networks
from whet.service.webhooks.deliveries import CLAIM_S, EVENTS, PAUSES_S, Sending, secret_owner
from whet.service.webhooks.sender import SIGNATURE, WebhookSender, post

LOOPBACK = networks(["127.0.0.0/8"])
SECRET = "whsec_of-a-test"


async def loopback(host: str, port: int) -> Sequence[str]:
    """A resolver for which each name is this machine."""
    return ["127.0.0.1"]


def hook(queue: Any, url: str, owner: str = "ann", events: Sequence[str] = EVENTS) -> None:
    """A webhook in the database."""

    def add(session: Any, now: float) -> None:
        identity = f"{random.Random(url + owner).getrandbits(64):016x}"
        value = queue.cipher.encrypt(SECRET, secret_owner(identity))
        row = {"id": identity, "owner": owner, "user": owner, "url": url, "events": list(events), "secret": value}
        session.add(Webhook(**row, key_id=queue.cipher.key_id, created_at=now, deleted_at=None))

    queue.do(add)


def rows(queue: Any) -> list[Delivery]:
    with queue.database.read() as session:
        return list(session.scalars(select(Delivery).order_by(Delivery.created_at, Delivery.event)))


def make_due(queue: Any) -> None:
    """Let the pauses of all that waits pass."""
    queue.change(lambda session: session.execute(update(Delivery).values(next_at=0.0)))


def send(queue: Any, **more: Any) -> int:
    options = {"allowed": LOOPBACK, "resolve": loopback, **more}
    return asyncio.run(WebhookSender(queue.database, queue.cipher, **options).send_due())


def test_each_change_of_a_runs_state_is_posted_and_signed(queue: Any, receive: Any) -> None:
    receiver = receive()
    hook(queue, f"http://receiver.test:{receiver.port}/hook?team=a")
    hook(queue, f"http://receiver.test:{receiver.port}/ends", events=["run.finished"])
    hook(queue, f"http://receiver.test:{receiver.port}/eve", owner="eve")
    run = queue.submit("ann", labels=["word-game"], config="api_key = 'canary'")
    held = queue.start(queue.runner())
    assert queue.do(finish, held, state="finished", reason="done", exit_code=0)
    assert send(queue) == 5
    assert send(queue) == 0
    events = ["run.queued", "run.starting", "run.running", "run.finished"]
    assert sorted(json.loads(one.body)["event"] for one in receiver.requests if one.path == "/hook?team=a") == sorted(
        events
    )
    assert [json.loads(one.body)["event"] for one in receiver.requests if one.path == "/ends"] == ["run.finished"]
    assert not [one for one in receiver.requests if one.path == "/eve"]
    assert len({json.loads(one.body)["id"] for one in receiver.requests}) == 5
    for one in receiver.requests:
        assert one.headers["Host"] == f"receiver.test:{receiver.port}"
        told = dict(part.split("=") for part in one.headers[SIGNATURE].split(","))
        expected = hmac.new(SECRET.encode(), f"{told['t']}.{one.body}".encode(), hashlib.sha256).hexdigest()
        assert told["v1"] == expected
        body = json.loads(one.body)
        assert body["id"] == one.headers["X-Whet-Delivery"]
        assert (body["run"]["id"], body["run"]["owner"], body["run"]["environments"]) == (run, "ann", ["word-game"])
        assert "canary" not in one.body
    assert {row.state for row in rows(queue)} == {"delivered"}
    assert {row.answer for row in rows(queue)} == {"HTTP 200"}


def test_what_fails_is_repeated_with_the_same_id_and_body_and_then_given_up(queue: Any, receive: Any) -> None:
    receiver = receive(*[500] * 20)
    hook(queue, f"http://receiver.test:{receiver.port}/", events=["run.queued"])
    queue.submit("ann")
    pauses = []
    for attempt in range(1, len(PAUSES_S) + 2):
        assert send(queue) == 1
        (row,) = rows(queue)
        assert (row.attempts, row.answer) == (attempt, "HTTP 500")
        with queue.database.read() as session:
            pauses.append(row.next_at - database_now(session))
        assert send(queue) == 0
        make_due(queue)
    assert row.state == "given_up"
    assert send(queue) == 0
    assert len(PAUSES_S) == 8
    assert sum(PAUSES_S) == pytest.approx(86_400, rel=0.01)
    assert pauses[:-1] == sorted(pauses[:-1])
    assert len({(one.body, one.headers["X-Whet-Delivery"]) for one in receiver.requests}) == 1
    assert len(receiver.requests) == len(PAUSES_S) + 1


def test_a_repetition_that_succeeds_ends_it(queue: Any, receive: Any) -> None:
    receiver = receive(503, 204)
    hook(queue, f"http://receiver.test:{receiver.port}/", events=["run.queued"])
    queue.submit("ann")
    send(queue)
    make_due(queue)
    send(queue)
    assert [(row.state, row.attempts, row.answer) for row in rows(queue)] == [("delivered", 2, "HTTP 204")]


def test_what_a_killed_sender_left_is_sent_again_after_its_claim(queue: Any) -> None:
    hook(queue, "http://receiver.test/", events=["run.queued"])
    queue.submit("ann")
    (first,) = queue.do(deliveries.claim, queue.cipher, most=9)
    assert queue.do(deliveries.claim, queue.cipher, most=9) == []
    queue.ahead += CLAIM_S + 1
    (second,) = queue.do(deliveries.claim, queue.cipher, most=9)
    assert (second.id, second.body, second.attempt) == (first.id, first.body, 2)
    # The first one, should it still live, has no say any more.
    queue.do(deliveries.ended, first, True, "HTTP 200", draw=random.Random(0))
    assert rows(queue)[0].state == "waiting"


PROGRAM = """
import sys
from pathlib import Path
from whet.hub.domain.cipher import Cipher
from whet.hub.storage.database import Database
from whet.service.webhooks.addresses import networks
from whet.service.webhooks.sender import WebhookSender

sender = WebhookSender(Database(sys.argv[1]), Cipher(b"k" * 32), networks(["127.0.0.0/8"]))
sender.start()
sys.stdin.read()
"""


def test_after_a_kill_of_the_service_what_was_under_way_is_delivered(queue: Any, receive: Any) -> None:
    receiver = receive(lambda handler: receiver.hold(handler))
    hook(queue, f"http://127.0.0.1:{receiver.port}/", events=["run.queued"])
    queue.submit("ann")
    url = queue.database.url.render_as_string(hide_password=False)
    first = subprocess.Popen([sys.executable, "-c", PROGRAM, url], stdin=subprocess.PIPE)
    try:
        assert receiver.held.wait(250)
        first.send_signal(signal.SIGKILL)
        assert first.wait(250) == -signal.SIGKILL
    finally:
        first.kill()
        first.communicate()
    assert [(row.state, row.attempts) for row in rows(queue)] == [("waiting", 1)]
    make_due(queue)
    assert send(queue) == 1
    assert [(row.state, row.attempts) for row in rows(queue)] == [("delivered", 2)]
    assert len({one.body for one in receiver.requests}) == 1


def one_to(receiver: Any, host: str = "receiver.test", scheme: str = "http") -> Sending:
    return Sending("0" * 32, "1" * 16, f"{scheme}://{host}:{receiver.port}/x", SECRET, "{}", 1)


def test_a_redirect_is_not_followed_and_is_no_success(receive: Any) -> None:
    def redirect(handler: Any) -> None:
        handler.send_response(302)
        handler.send_header("Location", "/elsewhere")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    receiver = receive(redirect)
    assert asyncio.run(post(one_to(receiver), 1, loopback, LOOPBACK)) == (False, "HTTP 302")
    assert [one.path for one in receiver.requests] == ["/x"]


def test_an_answer_that_never_ends_or_is_endless_holds_nothing_up(receive: Any) -> None:
    def endless(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65536)

    receiver = receive(endless, lambda handler: receiver.hold(handler))
    assert asyncio.run(post(one_to(receiver), 1, loopback, LOOPBACK)) == (True, "HTTP 200")
    delivered, answer = asyncio.run(post(one_to(receiver), 1, loopback, LOOPBACK, deadline_s=0.2))
    assert not delivered
    assert answer.startswith("no answer within")


def test_a_name_is_resolved_once_and_the_connection_goes_to_the_address_that_was_checked(receive: Any) -> None:
    receiver = receive()
    told: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        """An address that may be used, and from then on one that may not."""
        told.append("127.0.0.1" if not told else "169.254.169.254")
        return told[-1:]

    assert asyncio.run(post(one_to(receiver), 1, rebinding, LOOPBACK)) == (True, "HTTP 200")
    assert told == ["127.0.0.1"]
    told.append("now another one")
    assert asyncio.run(post(one_to(receiver), 1, rebinding, LOOPBACK))[0] is False
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"]])
def test_nothing_is_sent_where_one_address_of_the_name_is_not_public(addresses: list[str], receive: Any) -> None:
    receiver = receive()

    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    delivered, answer = asyncio.run(post(one_to(receiver), 1, resolve))
    assert not delivered
    assert "public addresses only" in answer
    assert receiver.connections == 0


def test_a_certificate_has_to_be_for_the_name_of_the_url(receive: Any, tmp_path: Path) -> None:
    receiver = receive(tls=(tmp_path, "receiver.test"))
    sent = post(one_to(receiver, scheme="https"), 1, loopback, LOOPBACK, trust=receiver.trust)
    assert asyncio.run(sent) == (True, "HTTP 200")
    assert receiver.names == ["receiver.test"]
    other = post(one_to(receiver, "other.test", "https"), 1, loopback, LOOPBACK, trust=receiver.trust)
    assert asyncio.run(other) == (False, "no answer: ConnectError")
    assert asyncio.run(post(one_to(receiver, scheme="https"), 1, loopback, LOOPBACK)) == (
        False,
        "no answer: ConnectError",
    )
    assert len(receiver.requests) == 1


def test_one_slow_receiver_does_not_take_all_places(queue: Any) -> None:
    hook(queue, "http://slow.test/", events=["run.queued"])
    hook(queue, "http://quick.test/", events=["run.queued"])
    for _ in range(10):
        queue.submit("ann")
    found = queue.do(deliveries.claim, queue.cipher, most=32)
    assert sorted(one.url for one in found) == ["http://quick.test/"] * 4 + ["http://slow.test/"] * 4


def test_deliveries_of_long_ago_are_forgotten_and_waiting_ones_kept(queue: Any) -> None:
    hook(queue, "http://receiver.test/", events=["run.queued"])
    queue.submit("ann")
    queue.submit("ann")
    first, _ = queue.do(deliveries.claim, queue.cipher, most=9)
    queue.do(deliveries.ended, first, True, "HTTP 200", draw=random.Random(0))
    queue.ahead += deliveries.KEPT_S + 60
    queue.do(deliveries.forget_old)
    assert [row.state for row in rows(queue)] == ["waiting"]


def test_the_interface_names_every_event() -> None:
    assert get_args(Event) == EVENTS
    assert sender.DEADLINE_S < CLAIM_S
