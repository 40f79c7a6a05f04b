"""The figures of `/metrics`, for Prometheus: requests by interface and status, their time, tokens, how many at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from whet.types import Response


class RequestOutcome:
    """How a request ended; a status of 500 until it is known."""

    status = 500


class GatewayMetrics:
    """The figures of one gateway."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("whet_requests", "Requests answered", ["interface", "status"], registry=self._registry)
        self._seconds = Histogram(
            "whet_request_seconds", "Seconds to the answer", ["interface"], registry=self._registry
        )
        self._in_flight = Gauge("whet_requests_in_flight", "Requests being answered", registry=self._registry)
        self._tokens = Counter("whet_tokens", "Tokens read and written", ["direction"], registry=self._registry)

    @contextmanager
    def request(self, interface: str) -> Iterator[RequestOutcome]:
        """Count one request; the caller sets the outcome's status."""
        outcome, start = RequestOutcome(), time.perf_counter()
        self._in_flight.inc()
        try:
            yield outcome
        finally:
            self._in_flight.dec()
            self._seconds.labels(interface).observe(time.perf_counter() - start)
            self._requests.labels(interface, str(outcome.status)).inc()

    def tokens(self, responses: Sequence[Response]) -> None:
        """Count the tokens of one request's choices, whose prompt is the same."""
        usages = [response.usage for response in responses if response.usage is not None]
        self._tokens.labels("read").inc(max((usage.prompt_tokens for usage in usages), default=0))
        self._tokens.labels("written").inc(sum(usage.completion_tokens for usage in usages))

    def text(self) -> bytes:
        return generate_latest(self._registry)
