"""A sink that keeps what it is given, and fails, or holds its caller up, on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from producer.events import CacheEventBatch
from producer.sinks.protocol import PublishError
from producer.wire import Wire


class MemorySink:
    def __init__(self, wires: Iterable[Wire] = (Wire.COLUMNS,)) -> None:
        self.wires = frozenset(wires)
        self.batches: list[CacheEventBatch] = []
        self.calls = 0
        self.flushes = 0
        self.closed = False
        self.fail_with: Exception | None = None
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.entered = threading.Event()

    def publish(self, batches: Sequence[CacheEventBatch]) -> None:
        self.entered.set()
        self.open_gate.wait()
        self.calls += 1
        if self.fail_with is not None:
            raise self.fail_with
        self.batches += batches

    def flush(self, timeout: float) -> bool:
        self.flushes += 1
        return True

    def close(self) -> None:
        self.closed = True

    @staticmethod
    def refusal(dropped: int) -> PublishError:
        return PublishError("the disk is full", dropped)
