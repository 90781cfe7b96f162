"""One stream to several sinks: a coordinator that is away does not stop the recording, nor the reverse."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from producer.events import CacheEventBatch
from producer.sinks.protocol import PublishError, Sink
from producer.wire import Wire


class TeeSink:
    """Hands every batch to each of its sinks, in the order given."""

    def __init__(self, *sinks: Sink) -> None:
        if not sinks:
            raise ValueError("a tee needs at least one sink, got none")
        self._sinks = sinks

    @property
    def wires(self) -> frozenset[Wire]:
        """Every form that any of its sinks sends."""
        return frozenset[Wire]().union(*(sink.wires for sink in self._sinks))

    def publish(self, batches: Sequence[CacheEventBatch]) -> None:
        """Try every sink, then raise one `PublishError` that names each failure."""
        self._each(lambda sink: sink.publish(batches), len(batches))

    def flush(self, timeout: float) -> bool:
        """Flush every sink, all within the one `timeout`."""
        deadline = time.monotonic() + timeout
        delivered = [sink.flush(max(0.0, deadline - time.monotonic())) for sink in self._sinks]
        return all(delivered)

    def close(self) -> None:
        """Close every sink, then raise one `PublishError` if any failed."""
        self._each(lambda sink: sink.close(), 0)

    def _each(self, act: Callable[[Sink], None], at_stake: int) -> None:
        failures: list[str] = []
        dropped = 0
        for sink in self._sinks:
            try:
                act(sink)
            except Exception as error:
                failures.append(f"{type(sink).__name__}: {error}")
                dropped = max(dropped, error.dropped if isinstance(error, PublishError) else at_stake)
        if failures:
            raise PublishError(
                f"{len(failures)} of {len(self._sinks)} sinks failed: {'; '.join(failures)}", dropped
            )
