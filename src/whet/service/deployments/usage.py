"""What deployments were used for: counted in memory, written once a second, so that no request waits for the database.

One write is one transaction, so a kill loses what was counted since the last one and counts nothing twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import or_, update

from whet.hub.storage.database import Database, database_now
from whet.hub.storage.tables import TokenRow
from whet.service.domain.usage import add_usage
from whet.service.storage.tables import DeploymentRow

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
