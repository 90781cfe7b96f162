"""Asks a server over and over how it is, and looks something up, whatever happens around it."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from api.client import Client
from tests.chaos.fleet import INSTANCES, MODEL, key, text
from tests.waiting import wait_for

INTERVAL = 0.05
SLOWEST = 3.0
"""Seconds that any answer may take on a machine that is busy."""


class Watch(threading.Thread):
    """Watches a server from when it is entered until it is left.

    Attributes:
        reasons: why it was not ready according to /readyz, once each time that it turned ready or unready.
        complaints: whatever did not answer as it should have.
        rounds: how often all was asked.
        slowest: seconds that the slowest answer took.
    """

    def __init__(self, url: str) -> None:
        super().__init__(name="watch")
        self.reasons: list[list[str]] = []
        self.complaints: list[str] = []
        self.rounds = 0
        self.slowest = 0.0
        self._url = url
        self._ending = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        wait_for(lambda: self.rounds or self.complaints, what="the server is asked")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self.join()

    @property
    def ready(self) -> bool:
        """Whether the server said so when it was last asked."""
        return self.reasons[-1:] == [[]]

    def run(self) -> None:
        with Client(self._url, timeout=10) as client:
            while not self._ending.wait(INTERVAL):
                try:
                    self._ask(client)
                except Exception as error:
                    self.complaints.append(repr(error))

    def _ask(self, client: Client) -> None:
        began = time.monotonic()
        if not client.healthy():
            self.complaints.append("it is not healthy")
        began = self._time(began)
        reasons = client.not_ready()
        if not self.reasons or bool(self.reasons[-1]) != bool(reasons):
            self.reasons.append(reasons)
        began = self._time(began)
        client.lookup([key(instance, 1) for instance in INSTANCES])
        began = self._time(began)
        client.blend_lookup((200, *text(1), 201), MODEL)
        self._time(began)
        self.rounds += 1

    def _time(self, began: float) -> float:
        now = time.monotonic()
        self.slowest = max(self.slowest, now - began)
        if now - began > SLOWEST:
            self.complaints.append(f"an answer took {now - began:.1f} s")
        return now
