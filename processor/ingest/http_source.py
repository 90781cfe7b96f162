"""Events that emitters push in request bodies. Nothing can be read again: what is missing is lost at once."""

from __future__ import annotations

import time
from collections.abc import Callable

from processor.ingest.decode import Decoder
from processor.ingest.gate import EventGate
from processor.ingest.outcomes import IngestSummary
from processor.ingest.source import ReplayCapability, SourceStatus


class HttpEventSource:
    """Offers the batches of request bodies to the gate, from any thread.

    Args:
        clock: seconds since the epoch; a source that is pushed to is always read up to now.
    """

    def __init__(self, gate: EventGate, decoder: Decoder, *, clock: Callable[[], float] = time.time) -> None:
        self._gate = gate
        self._decoder = decoder
        self._clock = clock

    def start(self) -> None:
        """Nothing to begin: bodies come by themselves."""

    def stop(self) -> None:
        """Nothing to end."""

    def ingest(self, body: bytes, now: float) -> IngestSummary:
        """Offer the batches of one body, in order; all of it is decoded before the first is offered.

        Args:
            body: an envelope in either form of the wire.
            now: seconds since the epoch, for batches that do not say when they were made.

        Raises:
            DecodeError: it is no envelope, or one of its batches breaks the contract; none was offered.
        """
        return self._gate.offer_all(self._decoder.decode(body, record_time=now))

    def status(self) -> SourceStatus:
        """Always caught up."""
        return SourceStatus("http", ReplayCapability.NONE)

    def watermark(self) -> float:
        """Now."""
        return self._clock()
