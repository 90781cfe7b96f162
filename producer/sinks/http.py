"""Batches by `POST /events`, in rows: what our server and an LMCache coordinator both take.

Not durable: what the server does not answer for is lost, and shows as a hole. A request whose connection
broke is sent once more, since a server closes idle connections, and the gate drops what it has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import httpx

from producer.events import CacheEventBatch
from producer.sinks.protocol import PublishError
from producer.wire import Wire, batch_rows, envelope

REQUEST_BYTES: Final = 8 * 2**20
"""A request's body ends with the batch that reaches this size; servers take several times as much."""

SHOWN_CHARS: Final = 200
"""How much of a refusal is told."""


class HttpSink:
    """Posts batches to a server's `/events`.

    Args:
        url: the server's base URL, such as `http://127.0.0.1:9300`.
        timeout: seconds for each step of a request.
        uds: path of a Unix socket to reach the server by, in place of the URL's address.
    """

    def __init__(self, url: str, timeout: float = 2.0, uds: str | None = None) -> None:
        self._url = url.rstrip("/") + "/events"
        self._client = httpx.Client(timeout=timeout, transport=httpx.HTTPTransport(uds=uds) if uds else None)

    @property
    def wires(self) -> frozenset[Wire]:
        """Rows alone."""
        return frozenset((Wire.ROWS,))

    def publish(self, batches: Sequence[CacheEventBatch]) -> None:
        """Post batches and wait for the answers; raises `PublishError` once all were tried."""
        dropped, cause = 0, None
        for forms in _requests(batches):
            try:
                _check(self._post(envelope(forms)))
            except httpx.HTTPError as error:
                dropped, cause = dropped + len(forms), error
        if cause is not None:
            raise PublishError(
                f"{self._url} did not take {dropped} of {len(batches)} batches: {cause}", dropped
            ) from cause

    def flush(self, timeout: float) -> bool:
        """Nothing ever waits: `publish` returns with the answer."""
        return True

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _post(self, body: bytes) -> httpx.Response:
        headers = {"content-type": "application/json"}
        try:
            return self._client.post(self._url, content=body, headers=headers)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            return self._client.post(self._url, content=body, headers=headers)


def _check(answer: httpx.Response) -> None:
    """Raise unless the batches were taken; with the server's own words, which say what to do about it."""
    if not answer.is_success:
        refusal = f"{answer.status_code} {answer.text[:SHOWN_CHARS]}"
        raise httpx.HTTPStatusError(refusal, request=answer.request, response=answer)


def _requests(batches: Sequence[CacheEventBatch]) -> Iterator[list[bytes]]:
    forms: list[bytes] = []
    size = 0
    for batch in batches:
        forms.append(batch_rows(batch))
        size += len(forms[-1])
        if size >= REQUEST_BYTES:
            yield forms
            forms, size = [], 0
    if forms:
        yield forms
