"""What the errors of the provider packages (`openai`, `anthropic`) mean: which end the run, and which fail one turn.

A server that refuses every request (key, permission, quota) is an `EndpointError`, which ends the run; everything
else fails one turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whet.errors import ContentFilterError, EndpointDownError, EndpointError, ModelError, OverlongPromptError

OVERLONG_PHRASES = (  # how servers say that the prompt does not fit, lower case
    "context length",
    "context_length_exceeded",
    "context limit",
    "context window",
    "maximum model length",
    "exceed the configured limit",
    "exceeds the configured limit",
    "exceeded model",
    "input is too long",
    "prompt_too_long",
    "prompt is too long",
    "too many total text bytes",
)
FILTER_PHRASES = ("content_filter", "content management policy")  # of servers that filter prompts
QUOTA_PHRASES = ("quota", "billing", "credit balance", "insufficient_funds", "spend limit")


def failure(package: Any, error: Any, base_url: str, advice: str) -> Exception | None:
    """The error of the package as one of whet's; None for another kind. `advice` is what to do about a refused key."""
    if isinstance(error, (package.AuthenticationError, package.PermissionDeniedError)):
        return EndpointError(f"{base_url} refuses access: {said(error)} {advice}")
    if isinstance(error, package.APITimeoutError):
        return EndpointDownError(f"{base_url} did not answer in time: {error}")
    if isinstance(error, package.APIConnectionError):
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        return EndpointDownError(f"{base_url} cannot be reached: {error}{cause}")
    return _of_status(error, base_url) if isinstance(error, package.APIStatusError) else None


def _of_status(error: Any, base_url: str) -> Exception:
    message, status = said(error), error.status_code
    whole = f"{error.response.text} {message}".lower()
    if status in (402, 429) and (status == 402 or any(phrase in whole for phrase in QUOTA_PHRASES)):
        return EndpointError(f"{base_url} reports that no quota is left: {message}")
    if status == 429:
        return EndpointDownError(f"{base_url} is busy: {message}")
    if status in (400, 413, 422):
        if any(phrase in whole for phrase in OVERLONG_PHRASES):
            return OverlongPromptError(message)
        if any(phrase in whole for phrase in QUOTA_PHRASES):
            return EndpointError(f"{base_url} reports that no quota is left: {message}")
        if any(phrase in whole for phrase in FILTER_PHRASES):
            return ContentFilterError(f"{base_url}: the content filter stopped the request: {message}")
        return ModelError(f"{base_url} rejects the request: {message}")
    if status == 404:
        return EndpointError(f"{base_url} does not have what was asked for: {message} Check the model and the address.")
    if status >= 500 or status in (408, 409):
        return EndpointDownError(f"{base_url} fails with status {status}: {message}")
    return ModelError(f"{base_url} answers with status {status}: {message}")


def said(error: Any) -> str:
    """What the server said, without the package's decoration."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
        body = body["error"]
    text = body.get("message") if isinstance(body, Mapping) else None
    return str(text or error)
