"""Sends what is due, in a thread of the API's process: one POST to one checked address, signed, with a deadline.

Redirects are not followed, and of an answer only the status is kept: what a webhook reaches tells its owner nothing
about the network that the service is in.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import random
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeVar

import httpx
from sqlalchemy.orm import Session

from whet import __version__
from whet.errors import WhetError
from whet.hub.domain.cipher import Cipher
from whet.hub.storage.database import Database, database_now
from whet.service.webhooks import deliveries
from whet.service.webhooks.addresses import AddressRefusedError, Network, Resolve, addresses_of, resolve_name, target_of
from whet.service.webhooks.deliveries import Sending

SIGNATURE = "X-Whet-Signature"
DEADLINE_S = 20.0
"""For one attempt, from resolving the name to the answer."""
MOST_AT_ONCE = 32
POLL_S = 1.0
CLEAN_S = 3600.0
ANSWER_BYTES = 4096
logger = logging.getLogger(__name__)
Found = TypeVar("Found")


def signature(secret: str, body: str, at: int) -> str:
    """The value of `X-Whet-Signature`: `t=UNIX,v1=HEX`, HMAC-SHA256 over `t.body`."""
    digest = hmac.new(secret.encode(), f"{at}.{body}".encode(), hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


async def post(
    one: Sending,
    at: int,
    resolve: Resolve = resolve_name,
    allowed: Sequence[Network] = (),
    deadline_s: float = DEADLINE_S,
    trust: ssl.SSLContext | None = None,
) -> tuple[bool, str]:
    """One attempt: whether the receiver took it, and what to say about it."""
    try:
        async with asyncio.timeout(deadline_s):
            target = target_of(one.url)
            (address, *_) = await addresses_of(target, resolve, allowed)
            host = f"[{address}]" if ":" in address else address
            headers = {
                "Host": target.authority,
                "Content-Type": "application/json",
                "User-Agent": f"whet/{__version__}",
                "X-Whet-Delivery": one.id,
                SIGNATURE: signature(one.secret, one.body, at),
            }
            async with httpx.AsyncClient(
                verify=trust or _public_trust(), trust_env=False, follow_redirects=False
            ) as client:
                request = client.build_request(
                    "POST",
                    f"{target.scheme}://{host}:{target.port}{target.path}",
                    headers=headers,
                    content=one.body.encode(),
                    extensions={"sni_hostname": target.host},
                )
                answer = await client.send(request, stream=True)
                with contextlib.suppress(httpx.HTTPError):  # it has answered; the rest lets it end in peace
                    await _read_a_little(answer)
                await answer.aclose()
    except TimeoutError:
        return False, f"no answer within {deadline_s:.0f} s"
    except AddressRefusedError as error:
        return False, str(error)
    except (httpx.HTTPError, OSError, ValueError) as error:
        return False, f"no answer: {type(error).__name__}"
    return answer.is_success, f"HTTP {answer.status_code}"


@cache
def _public_trust() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


async def _read_a_little(answer: httpx.Response) -> None:
    left = ANSWER_BYTES
    async for chunk in answer.aiter_raw():
        left -= len(chunk)
        if left < 0:
            return


class WebhookSender:
    """Sends until it is stopped. There may be several on one database: an attempt is claimed by one of them."""

    def __init__(
        self, database: Database, cipher: Cipher, allowed: Sequence[Network] = (), resolve: Resolve = resolve_name
    ) -> None:
        self._database, self._cipher = database, cipher
        self._allowed, self._resolve = allowed, resolve
        self._random = random.Random()
        self._busy: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="whet webhooks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Running attempts are abandoned; the next sender repeats them."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    async def send_due(self) -> int:
        """Make the attempts that are due now; how many there were."""
        claimed = await self._claimed()
        await asyncio.gather(*(self._send(one) for one in claimed))
        return len(claimed)

    async def _run(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        clean_in = 0.0
        while not self._stopping.is_set():
            try:
                if clean_in <= 0.0:
                    await self._change(deliveries.forget_old)
                    clean_in = CLEAN_S
                for one in await self._claimed(MOST_AT_ONCE - len(tasks)):
                    task = asyncio.create_task(self._send(one))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            except WhetError as error:
                logger.warning("webhooks: %s", error)
            clean_in -= POLL_S
            await asyncio.to_thread(self._stopping.wait, POLL_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _claimed(self, most: int = MOST_AT_ONCE) -> list[Sending]:
        if most <= 0 or not await asyncio.to_thread(self._anything_due):
            return []

        return await self._change(lambda session, now: deliveries.claim(session, self._cipher, now, most, self._busy))

    def _anything_due(self) -> bool:
        with self._database.read() as session:
            return deliveries.anything_due(session, database_now(session))

    async def _send(self, one: Sending) -> None:
        self._busy[one.webhook] += 1
        try:
            at = await self._change(lambda _, now: int(now))
            delivered, answer = await post(one, at, self._resolve, self._allowed)
            ended = partial(deliveries.ended, one=one, delivered=delivered, answer=answer, draw=self._random)
            await self._change(lambda session, now: ended(session, now=now))
        except WhetError as error:
            logger.warning("webhooks: %s", error)
        finally:
            self._busy[one.webhook] -= 1

    async def _change(self, change: Callable[[Session, float], Found]) -> Found:
        def run() -> Found:
            with self._database.write() as session:
                return change(session, database_now(session))

        return await asyncio.to_thread(run)
