"""What the emitter asks of a transport: to take batches, to deliver them, to let go.

A sink is called from one thread at a time, never from the serving path. What it does not take, and says so by
a `PublishError`, is gone; its sequence numbers are used up all the same, so that readers see a hole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from producer.events import CacheEventBatch
from producer.wire import Wire


class PublishError(Exception):
    """Batches were not taken.

    Attributes:
        dropped: how many of those handed over.
    """

    def __init__(self, message: str, dropped: int) -> None:
        super().__init__(message)
        self.dropped = dropped


class Sink(Protocol):
    """A transport for an emitter's batches."""

    @property
    def wires(self) -> frozenset[Wire]:
        """The forms it sends; the emitter cuts batches so that they fit each of them."""
        ...

    def publish(self, batches: Sequence[CacheEventBatch]) -> None:
        """Take batches, keeping their order within and across calls. Returns before they are delivered.

        Raises:
            PublishError: some were not taken; the others were.
        """
        ...

    def flush(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for delivery; whether nothing waits any longer."""
        ...

    def close(self) -> None:
        """Deliver what can be delivered within seconds and let go of all resources."""
        ...
