"""What is answered while a service starts, and the thread that starts it.

The server listens before the kernels are loaded and the state is there, since a start may take minutes and
whoever watches the process has to see it live. Until then it answers for itself alone (`OPEN`); whoever asks
for more is told to come back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from api.http import OPEN, RequestError, error_response
from processor.service import Phase, Service, StartAbandoned

RETRY_AFTER: Final = "1"
"""Seconds after which to ask again."""


class UntilStarted:
    """The application of a service, closed but for `OPEN` while the service does not run."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 503 with the reason, or let the request through."""
        phase = self.service.phase
        if phase is Phase.RUNNING or scope["type"] != "http" or scope["path"] in OPEN:
            await self.app(scope, receive, send)
        else:
            closed = RequestError(503, f"{phase.value}; try again soon", {"retry-after": RETRY_AFTER})
            await error_response(closed)(scope, receive, send)


class Start:
    """The start of a service, on a thread of its own that holds up no end of the process.

    Args:
        on_started: called once the service runs.
        on_failed: called if it does not come to that.
    """

    def __init__(
        self, service: Service, on_started: Callable[[], None], on_failed: Callable[[], None]
    ) -> None:
        self._service = service
        self._on_started = on_started
        self._on_failed = on_failed
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="start", daemon=True)

    def begin(self) -> None:
        """Start the service; returns at once."""
        self._thread.start()

    def check(self) -> None:
        """Raise what the start failed with, if it did."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._service.start()
        except StartAbandoned:
            return
        except BaseException as error:
            self._failure = error
            self._on_failed()
        else:
            self._on_started()
