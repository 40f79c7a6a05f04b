"""What a request of the hub can fail with. The API turns each into a status and a JSON body, pages into a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whet.errors import WhetError

STATUS = {
    "malformed": 400,
    "authorization_pending": 400,
    "slow_down": 400,
    "access_denied": 400,
    "expired_token": 400,
    "unauthenticated": 401,
    "over_quota": 402,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "version_exists": 409,
    "version_deleted": 409,
    "environment_deleted": 409,
    "name_taken": 409,
    "wrong_offset": 409,
    "push_closed": 409,
    "conflict": 409,
    "wrong_state": 409,
    "deleted": 410,
    "too_large": 413,
    "invalid": 422,
    "archive_refused": 422,
    "hash_mismatch": 422,
    "refused_config": 422,
    "too_many": 429,
    "busy": 503,
    "disk_full": 507,
}
"""Every code of an error, and its HTTP status."""


class HubError(WhetError):
    """A request that cannot be answered as it is; `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str, details: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.details = list(details)

    @property
    def status(self) -> int:
        return STATUS[self.code]


def not_found(what: str) -> HubError:
    """The same answer for what does not exist and for what the caller may not see."""
    return HubError("not_found", f"there is no {what} here, or this token may not see it.")
