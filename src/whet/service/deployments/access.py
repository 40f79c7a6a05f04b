"""Which deployments a request may use: its key is a token of the hub, verified against the database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import or_, update

from whet.clients.client import AnyClient
from whet.gateway.guard import Visitor
from whet.gateway.wire import RequestError
from whet.hub.domain.access import digest_of, identify
from whet.hub.errors import HubError
from whet.hub.storage.database import Database, database_now
from whet.hub.storage.tables import TokenRow
from whet.service.deployments.reconciler import Deployed, Deployments
from whet.service.domain.deployments import SEE, owners_of
from whet.service.domain.usage import add_usage
from whet.service.storage.tables import DeploymentRow
from whet.types import Response

CACHE_S = 0.5
"""How long a token that was verified is not looked up again; as long does one work that was revoked."""
MOST_CACHED = 10_000


@dataclass(frozen=True, slots=True)
class TokenUser:
    """The user of a valid token."""

    name: str
    token: str  # its id
    owners: frozenset[str]  # whose deployments it may use


@dataclass(frozen=True, slots=True)
class _LookUp:
    work: asyncio.Task[TokenUser]
    until: float


class TokenAccess:
    """An `Access` of the gateway by tokens of the hub."""

    def __init__(
        self,
        database: Database,
        deployments: Deployments,
        meter: UsageMeter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._deployments, self._meter, self._clock = database, deployments, meter, clock
        self._known: dict[str, _LookUp] = {}

    async def visitor(self, key: str | None) -> Visitor:
        if not key:
            raise RequestError("send a token of this service as the API key; one is made by: whet login", status=401)
        user = await asyncio.shield(self._look_up(key).work)
        return TokenVisitor(user, self._deployments, self._meter)

    def _look_up(self, key: str) -> _LookUp:
        digest, now = digest_of(key), self._clock()
        known = self._known.get(digest)
        if known is None or (known.work.done() and known.until <= now):
            if len(self._known) >= MOST_CACHED:
                self._known.clear()
            work = asyncio.ensure_future(self._deployments.in_thread(partial(self._user, key)))
            work.add_done_callback(lambda done: done.cancelled() or done.exception())  # where no request waits any more
            known = self._known[digest] = _LookUp(work, now + CACHE_S)
        return known

    def _user(self, key: str) -> TokenUser:
        try:
            with self._database.read() as session:
                caller = identify(session, key, SEE, database_now(session))
                return TokenUser(caller.name, caller.known_token.id, owners_of(session, caller))
        except HubError as error:
            if error.code == "unauthenticated":
                raise RequestError(str(error), status=401) from None
            raise RequestError("the service's database is busy; try again", status=503) from error


class TokenVisitor:
    """One request of a user."""

    def __init__(self, user: TokenUser, deployments: Deployments, meter: UsageMeter) -> None:
        self._user, self._deployments, self._meter = user, deployments, meter
        self._used: Deployed | None = None

    async def models(self) -> Sequence[str]:
        """`base:name`, or `base:owner/name` where several owners have one of that name."""
        seen = self._deployments.of_owners(self._user.owners)
        names = [one.model for one in seen]
        return sorted(one.model if names.count(one.model) == 1 else one.full_model for one in seen)

    def find(self, model: str) -> AnyClient | None:
        matching = [
            one for one in self._deployments.of_owners(self._user.owners) if model in (one.model, one.full_model)
        ]
        own = [one for one in matching if one.owner == self._user.name]
        if len(matching) > 1 and len(own) != 1:
            names = ", ".join(sorted(one.full_model for one in matching))
            raise RequestError(f"several owners have a model {model!r}: {names}. Name one of them", param="model")
        if not matching:
            return None
        self._used = deployed = (own or matching)[0]
        if deployed.state == "failed":
            raise RequestError(f"{model} cannot be served: {deployed.reason}", status=503, code="deployment_failed")
        if deployed.served is None:
            raise RequestError(f"{model} is being loaded; try again", status=503, code="deployment_pending")
        return deployed.client

    def answered(self, model: str, responses: Sequence[Response]) -> None:
        if self._used is None:
            return
        usages = [response.usage for response in responses if response.usage is not None]
        read = max((usage.prompt_tokens for usage in usages), default=0)
        written = sum(usage.completion_tokens for usage in usages)
        self._meter.note(self._used.id, self._used.owner, self._user.token, read, written)


# What deployments were used for: counted in memory, written once a second, so that no request waits for the database.
#
# One write is one transaction, so a kill loses what was counted since the last one and counts nothing twice.

TOKEN_USED_S = 600.0  # how exact `last_used_at` of a token is
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counted:
    """What was counted since the last write."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)  # by deployment and owner
    input_tokens: Counter[tuple[str, str]] = field(default_factory=Counter)
    output_tokens: Counter[tuple[str, str]] = field(default_factory=Counter)
    tokens: set[str] = field(default_factory=set)  # ids of the hub's tokens that were used

    def update(self, earlier: Counted) -> None:
        self.requests.update(earlier.requests)
        self.input_tokens.update(earlier.input_tokens)
        self.output_tokens.update(earlier.output_tokens)
        self.tokens |= earlier.tokens


class UsageMeter:
    """Counts on the event loop; `write` is for a thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counted = Counted()

    def note(self, deployment: str, owner: str, token: str, input_tokens: int, output_tokens: int) -> None:
        counted, of = self._counted, (deployment, owner)
        counted.requests[of] += 1
        counted.input_tokens[of] += input_tokens
        counted.output_tokens[of] += output_tokens
        counted.tokens.add(token)

    def write(self) -> None:
        """Write what was counted. Where that fails it is kept for the next time, unless it may have been written."""
        counted, self._counted = self._counted, Counted()
        if not counted.requests:
            return
        committing = False
        try:
            with self._database.write() as session:
                now = database_now(session)
                for (deployment, owner), requests in counted.requests.items():
                    amounts: Mapping[str, int] = {
                        "requests": requests,
                        "input_tokens": counted.input_tokens[deployment, owner],
                        "output_tokens": counted.output_tokens[deployment, owner],
                    }
                    columns = {name: getattr(DeploymentRow, name) + amount for name, amount in amounts.items()}
                    session.execute(
                        update(DeploymentRow).where(DeploymentRow.id == deployment).values(last_used_at=now, **columns)
                    )
                    add_usage(session, owner, now, **amounts)
                not_recent = or_(TokenRow.last_used_at.is_(None), TokenRow.last_used_at < now - TOKEN_USED_S)
                used = update(TokenRow).where(TokenRow.id.in_(counted.tokens), not_recent)
                session.execute(used.values(last_used_at=now))
                session.flush()
                committing = True
        except Exception:
            if committing:
                _log.exception("what deployments were used for could not be written, and may be lost")
                return
            self._counted.update(counted)  # nothing of it was written
            raise
