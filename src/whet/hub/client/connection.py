"""Requests to a hub: authorised, retried where that is safe, and answered with one clear error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from whet import __version__
from whet.errors import WhetError
from whet.hub.client.settings import hub_url, token_for
from whet.system.terminal import safe_text

ATTEMPTS = 5
PAUSE_S = 0.5
TIMEOUT_S = 60.0
MADE_S = 1800.0
"""How long a download may take to begin: weights of a large model are exported for it first."""
LONGEST_MESSAGE = 2_000
BUSY = (429, 503)
AnswerT = TypeVar("AnswerT", bound=BaseModel)


class HubRequestError(WhetError):
    """A hub refused a request, or cannot be reached.

    `code` is the hub's own word for it (docs/design/hub.md), None where there is no hub that answers; `details` is
    what it said of parts.
    """

    def __init__(self, message: str, code: str | None = None, details: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


class HubClient:
    """A hub as one user sees it. Use it in a `with`; requests are made one after the other."""

    def __init__(self, url: str, token: str | None = None, *, pause_s: float = PAUSE_S) -> None:
        """`url` is the hub's address, and `pause_s` the seconds before a first retry, which double."""
        self.url = url
        self.token = token
        self._pause_s = pause_s
        headers = {"User-Agent": f"whet/{__version__}", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        # No redirects: the token would go where they lead.
        self._http = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, follow_redirects=False)

    def __enter__(self) -> HubClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, answer: type[AnswerT], method: str, path: str, **request: Any) -> AnswerT:
        """A request to `/api/v1` and its answer. Raises `HubRequestError`."""
        response = self.send(method, f"/api/v1{path}", **request)
        return self._checked(answer, self._json(response), response)

    def items(self, answer: type[AnswerT], path: str, **query: str | None) -> Iterator[AnswerT]:
        """Everything of a list, page after page. Raises `HubRequestError`."""
        parameters = {key: value for key, value in query.items() if value is not None}
        cursor: str | None = None
        while True:
            more = {"cursor": cursor} if cursor is not None else {}
            response = self.send("GET", f"/api/v1{path}", params={**parameters, "limit": "200", **more})
            page = self._json(response)
            if not isinstance(page, dict) or not isinstance(page.get("items"), list):
                raise self._unknown(response)
            for item in page["items"]:
                yield self._checked(answer, item, response)
            following = page.get("next")
            if following is None or following == cursor:
                return
            cursor = str(following)

    def send(self, method: str, path: str, *, retry: bool | None = None, **request: Any) -> httpx.Response:
        """A request, repeated while the hub is busy and, if `retry` (default: all but POST), after a lost connection.

        Raises `HubRequestError` for an answer that is no success.
        """
        retry = method != "POST" if retry is None else retry
        for attempt in range(1, ATTEMPTS + 1):
            last = attempt == ATTEMPTS
            try:
                response = self._http.request(method, path, **request)
            except httpx.TransportError as error:
                refused = isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol)
                if last or refused or not retry:
                    raise self._unreachable(error) from None
            else:
                if response.is_success:
                    return response
                if last or response.status_code not in BUSY:
                    raise self._refused(response)
            time.sleep(self._pause_s * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")

    def download(self, path: str) -> Iterator[bytes]:
        """The bytes of a file, piece by piece. Raises `HubRequestError`."""
        try:
            patience = httpx.Timeout(TIMEOUT_S, read=MADE_S)
            with self._http.stream("GET", path, headers={"Accept": "*/*"}, timeout=patience) as response:
                if not response.is_success:
                    response.read()
                    raise self._refused(response)
                yield from response.iter_bytes()
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _checked(self, answer: type[AnswerT], value: Any, response: httpx.Response) -> AnswerT:
        try:
            return answer.model_validate(value)
        except ValidationError:
            raise self._unknown(response) from None

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except (ValueError, RecursionError):
            raise self._unknown(response) from None

    def _unknown(self, response: httpx.Response) -> HubRequestError:
        return HubRequestError(
            f"{response.request.method} {safe_text(str(response.request.url), 200)}: the answer is not that of a hub "
            f"which whet {__version__} knows. Check the address, and that hub and client have the same version."
        )

    def _unreachable(self, error: httpx.TransportError) -> HubRequestError:
        return HubRequestError(
            f"the hub at {self.url} cannot be reached ({safe_text(str(error) or type(error).__name__, 200)}). "
            "Check the address and that it is running, then do it again."
        )

    def _refused(self, response: httpx.Response) -> HubRequestError:
        try:
            said = response.json()["error"]
            code, message = str(said["code"]), str(said["message"])
            details = tuple(said.get("details") or ())
        except (ValueError, KeyError, TypeError, RecursionError):
            return HubRequestError(
                f"{response.request.method} {safe_text(str(response.request.url), 200)}: status {response.status_code} "
                "with a body that is not a hub's. Check the address."
            )
        message = safe_text(message, LONGEST_MESSAGE)
        if code == "unauthenticated":
            message = f"{message} Log in with: whet login --hub {self.url}"
        elif code == "not_found" and self.token is None:
            message = f"{message} You are not logged in to {self.url}; private environments need: whet login"
        return HubRequestError(message, code, details)


def connect(url: str | None = None) -> HubClient:
    """The hub that this machine uses (`settings.hub_url`), with its token. Raises `ConfigError` where none is set."""
    url = hub_url(url)
    return HubClient(url, token_for(url))


def path_of(*parts: str | int) -> str:
    """A path of these segments, escaped."""
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)
