"""What the emitter asks of a transport: to take batches, to deliver them, to let go.

A sink is called from one thread at a time, never from the serving path. What it does not take, and says so by
a `PublishError`, is gone; its sequence numbers are used up all the same, so that readers see a hole.

A carrier is what a spool asks of a transport: it takes records one by one, already encoded, and says of each
whether it was delivered. All its methods but `encode` are called from one thread, and it answers on that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Protocol

from producer.errors import OperatorError
from producer.events import CacheEventBatch
from producer.wire import Wire


class PublishError(OperatorError):
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


class Answer(Enum):
    """What became of a record."""

    TAKEN = auto()
    """It is where it will not get lost."""
    FAILED = auto()
    """It did not get there this time."""
    REFUSED = auto()
    """It, or one that shared a request with it, will never be taken."""


class Carrier(Protocol):
    """A transport for encoded records that keeps their order, whatever becomes of them."""

    @property
    def wire(self) -> Wire:
        """The form it encodes into."""
        ...

    def encode(self, batch: CacheEventBatch) -> bytes:
        """The value of a batch's record; raises ValueError where the form cannot hold it."""
        ...

    def send(self, key: bytes, value: bytes, on_answer: Callable[[Answer], None]) -> bool:
        """Queue a record, unless there is no room for it now. After one that was not taken, none is."""
        ...

    def serve(self, timeout: float) -> bool:
        """Give the answers that are there, waiting at most `timeout` seconds for the first.

        Returns:
            Whether the carrier can go on without a `reset`.
        """
        ...

    def reset(self) -> None:
        """Give up what is queued, answering for all of it, and be ready to take records again."""
        ...

    def close(self) -> None:
        """Give up what is queued and let go of all resources."""
        ...
