"""HTTP/1.1 with bounds on what uvicorn leaves unbounded: headers, trailers, and the time they may take.

httptools keeps a header until its end has come, however long it is, and uvicorn waits for the end of a
request's head for ever. So a connection is closed when what has come without being a body exceeds HEAD_BYTES,
or when a request's head is not complete HEAD_SECONDS after it began, or after the connection did. Runs on the
event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES: Final = 64 * 1024
HEAD_SECONDS: Final = 20.0

_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol on httptools; the parser's callbacks tell which part of a request is coming in."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a first request."""
        super().connection_made(transport)
        self._head_bytes = 0
        self._patience: asyncio.TimerHandle | None = None
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; close the connection on a head, or trailers, without end."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """A request's first byte is here: its head is due."""
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A request's head is here."""
        self._head_came()
        self._head_bytes = 0
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer, which nobody reads: not into the request that is being answered."""
        if self._patience is not None:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, which has a bound of its own."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has ended; the next one's head is counted from here."""
        self._head_bytes = 0
        super().on_message_complete()

    def _await_head(self) -> None:
        self._head_came()
        self._patience = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_came(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
