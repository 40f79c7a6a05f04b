"""What a request of the hub can fail with. The API turns each into a status and a JSON body, pages into a page."""

from __future__ import annotations

from whet.dashboard import errors
from whet.dashboard.errors import DashboardError

STATUS = {
    **errors.STATUS,
    "authorization_pending": 400,
    "slow_down": 400,
    "access_denied": 400,
    "expired_token": 400,
    "over_quota": 402,
    "version_exists": 409,
    "version_deleted": 409,
    "environment_deleted": 409,
    "name_taken": 409,
    "wrong_offset": 409,
    "push_closed": 409,
    "wrong_state": 409,
    "deleted": 410,
    "archive_refused": 422,
    "hash_mismatch": 422,
    "refused_config": 422,
    "file_lost": 500,
}
"""Every code of an error, and its HTTP status."""


class HubError(DashboardError):
    """A request that cannot be answered as it is; `code` is for programs, the message for people."""

    @property
    def status(self) -> int:
        """The HTTP status of the error's code."""
        return STATUS[self.code]


def not_found(what: str) -> HubError:
    """The same answer for what does not exist and for what the caller may not see."""
    return HubError("not_found", f"there is no {what} here, or this token may not see it.")


def file_lost(sha256: str) -> HubError:
    """A row names a file that the storage does not hold."""
    return HubError(
        "file_lost",
        f"the hub's storage no longer holds the file with SHA-256 {sha256}. Restore it from a backup, or push the "
        "package again as another version.",
    )
