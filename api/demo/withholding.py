"""A sink that keeps one batch back until told to deliver it: how the demo makes a gap on purpose.

The batch has its sequence number already, so the batches behind it arrive with a hole in front of them, just
as when a network or a broker had swallowed it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from producer.events import CacheEventBatch, EventType, Tier
from producer.sinks.protocol import Sink
from producer.wire import Wire


class WithholdingSink:
    """Passes batches on to another sink; once armed, keeps the next store into L1."""

    def __init__(self, inner: Sink) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._armed = False
        self._kept: CacheEventBatch | None = None

    @property
    def wires(self) -> frozenset[Wire]:
        """Those of the sink behind it."""
        return self._inner.wires

    @property
    def kept(self) -> CacheEventBatch | None:
        """The batch being withheld."""
        return self._kept

    def arm(self) -> None:
        """Withhold the next batch that stores into L1."""
        with self._lock:
            self._armed = True

    def deliver(self) -> None:
        """Send the withheld batch after all, behind everything sent since."""
        with self._lock:
            if self._kept is not None:
                self._inner.publish([self._kept])
            self._kept = None
            self._armed = False

    def publish(self, batches: Sequence[CacheEventBatch]) -> None:
        """Pass on all batches but the one to withhold."""
        with self._lock:
            passed = []
            for batch in batches:
                if self._armed and batch.event_type is EventType.STORE and batch.tier is Tier.L1:
                    self._kept = batch
                    self._armed = False
                else:
                    passed.append(batch)
            if passed:
                self._inner.publish(passed)

    def flush(self, timeout: float) -> bool:
        """Flush the sink behind it; the withheld batch does not count."""
        return self._inner.flush(timeout)

    def close(self) -> None:
        """Close the sink behind it; a batch still withheld is lost."""
        self._inner.close()
