"""What a request of the dashboard can fail with. Each becomes a status and a JSON body, or a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whet.errors import WhetError

STATUS = {
    "malformed": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "too_large": 413,
    "invalid": 422,
    "unreadable": 422,
    "too_many": 429,
    "internal_error": 500,
    "missing_extra": 501,
    "busy": 503,
    "disk_full": 507,
}
"""Every code of an error, and its HTTP status."""


class DashboardError(WhetError):
    """A request that cannot be answered as it is; `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str, details: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.details = list(details)

    @property
    def status(self) -> int:
        return STATUS.get(self.code, 422)  # an application that includes the routes has further codes

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": str(self), "details": self.details}}


def no_such(what: str) -> DashboardError:
    """The same answer for what does not exist and for what the viewer may not see."""
    return DashboardError("not_found", f"there is no {what} here, or you may not see it.")
