"""Logins with a code: a program without a browser shows a code, which its user approves elsewhere."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from whet.hub.answers import DecisionAnswer, DeviceCodeAnswer, LoginAnswer
from whet.hub.domain.access import Caller, digest_of, permit
from whet.hub.domain.accounts import DAY_S, issue
from whet.hub.domain.hub import Hub
from whet.hub.errors import HubError, not_found
from whet.hub.policy import Scope
from whet.hub.storage.tables import Account, DeviceCode

DEVICE_S, INTERVAL_S = 600, 5
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"  # of a user code: no vowels, so no words
MAX_WAITING = 10_000
BEGUN, WRONG, WRONG_OF_ADDRESS, POLLS = 30, 10, 30, 240
"""In `DEVICE_S`: logins of one address; wrong codes of one user, and of one address; questions about one login."""


@dataclass(frozen=True, slots=True)
class DeviceClient:
    """The sender of a request: the hub that counts its attempts, and its address."""

    hub: Hub
    address: str

    @staticmethod
    def of(hub: Hub, host: str | None) -> DeviceClient:
        """Of IPv6 the network counts: one machine has all addresses of it."""
        with contextlib.suppress(ValueError):
            if host is not None and ipaddress.ip_address(host).version == 6:
                host = str(ipaddress.ip_network(f"{host.partition('%')[0]}/64", strict=False))
        return DeviceClient(hub, host or "unknown")

    def check(self, what: str, key: str, most: int) -> None:
        """Raises `HubError` where there were `most` attempts."""
        if self.hub.attempts.count((what, key), self.hub.clock()) >= most:
            minutes = DEVICE_S // 60
            raise HubError("too_many", f"too many {what} in {minutes} minutes. Try again in {minutes} minutes.")

    def note(self, what: str, *keys: str) -> None:
        """Count one attempt of each key."""
        for key in keys:
            self.hub.attempts.add((what, key), self.hub.clock())


def begin(session: Session, sender: DeviceClient, client: str, scope: Scope, base: str, now: float) -> DeviceCodeAnswer:
    """A new code. Codes that expired are removed. Raises `HubError` for too many of one address."""
    sender.check("logins of this address", sender.address, BEGUN)
    sender.note("logins of this address", sender.address)
    session.execute(delete(DeviceCode).where(DeviceCode.expires_at <= now))
    if int(session.scalar(select(func.count()).select_from(DeviceCode)) or 0) >= MAX_WAITING:
        raise HubError("too_many", "too many logins wait for approval on this hub. Try again in ten minutes.")
    device_code = secrets.token_urlsafe(32)
    letters = [secrets.choice(LETTERS) for _ in range(8)]
    user_code = "".join(letters[:4]) + "-" + "".join(letters[4:])
    session.add(
        DeviceCode(
            digest=digest_of(device_code),
            user_code=user_code,
            client=client,
            scope=int(scope),
            state="pending",
            expires_at=now + DEVICE_S,
        )
    )
    return DeviceCodeAnswer(
        device_code=device_code,
        user_code=user_code,
        verification_uri=f"{base}device",
        verification_uri_complete=f"{base}device?code={user_code}",
        expires_in=DEVICE_S,
        interval=INTERVAL_S,
    )


def waiting(session: Session, sender: DeviceClient, caller: Caller, user_code: str, now: float) -> DeviceCode:
    """The login that waits under a code. Raises `HubError` where there is none, and after too many wrong codes."""
    sender.check("wrong codes", caller.name, WRONG)
    sender.check("wrong codes", f"from {sender.address}", WRONG_OF_ADDRESS)
    code = user_code.strip().upper()
    row = session.scalar(select(DeviceCode).where(DeviceCode.user_code == code).with_for_update())
    if row is None or row.expires_at <= now or row.state != "pending":
        sender.note("wrong codes", caller.name, f"from {sender.address}")
        raise not_found("login with this code")
    return row


def decide(
    session: Session, sender: DeviceClient, caller: Caller, user_code: str, approve: bool, now: float
) -> DecisionAnswer:
    """Approve or refuse a login. The new token has at most the scope of the one that approves."""
    permit(caller)
    row = waiting(session, sender, caller, user_code, now)
    row.state = "approved" if approve else "denied"
    row.user_id = caller.known.id
    row.scope = min(row.scope, caller.known_token.scope)
    return DecisionAnswer.model_validate(row)


def collect(session: Session, sender: DeviceClient, device_code: str, now: float) -> LoginAnswer | HubError:
    """The token of an approved login, once. An error is returned rather than raised, since the row has changed."""
    sender.check("unknown logins", sender.address, WRONG_OF_ADDRESS)
    digest = digest_of(device_code)
    row = session.get(DeviceCode, digest)
    if row is not None:
        sender.check("questions about this login", digest, POLLS)
        sender.note("questions about this login", digest)
    if row is None or row.expires_at <= now:
        sender.note("unknown logins", sender.address)
        return HubError("expired_token", "the code has expired or was used. Log in again.")
    if row.state == "pending":
        early = row.polled_at is not None and now - row.polled_at < INTERVAL_S - 1
        row.polled_at = now
        if early:
            return HubError("slow_down", f"ask every {INTERVAL_S} seconds.")
        return HubError("authorization_pending", "the login waits for approval.")
    session.delete(row)
    if row.state == "denied":
        return HubError("access_denied", "the login was refused.")
    user = session.get_one(Account, row.user_id)
    if user.disabled_at is not None:
        return HubError("access_denied", "the user was disabled.")
    token, text = issue(session, user, row.client, Scope(row.scope), 90 * DAY_S, now)
    return LoginAnswer(token=text, scope=token.scope, expires_at=token.expires_at, user=user.name)
