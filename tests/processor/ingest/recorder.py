"""A consumer that writes down what the gate hands it, and short ways to make batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from processor.batch import Admission, BatchColumns, EventBatch
from producer.events import EventType, Tier


class Recorder:
    """Everything that was said to a consumer, in order.

    Attributes:
        calls: `("consume", seq)`, `("fence", instance_id)`, `("settle", instance_id)`, `("expire", before)`.
        refuses: says of an admission whether consuming it is to fail.
    """

    def __init__(self, name: str = "recorder") -> None:
        self.name = name
        self.calls: list[tuple[str, object]] = []
        self.admissions: list[Admission] = []
        self.refuses: Callable[[Admission], bool] = lambda admission: False

    def consume(self, admission: Admission) -> None:
        if self.refuses(admission):
            raise RuntimeError("refused")
        self.calls.append(("consume", admission.batch.seq))
        self.admissions.append(admission)

    def fence(self, instance_id: str) -> None:
        self.calls.append(("fence", instance_id))

    def settle(self, instance_id: str) -> None:
        self.calls.append(("settle", instance_id))

    def expire(self, before: float) -> None:
        self.calls.append(("expire", before))

    @property
    def seqs(self) -> list[int]:
        """Of the batches consumed."""
        return [admission.batch.seq for admission in self.admissions]


def batch(
    seq: int,
    incarnation: int = 1,
    instance_id: str = "server-1",
    *,
    event_type: EventType = EventType.STORE,
    ts: float = 0.0,
    entries: int = 1,
) -> EventBatch:
    return EventBatch(
        instance_id,
        incarnation,
        seq,
        event_type,
        Tier.L1,
        "dram",
        ts=ts,
        event_time=ts,
        columns=BatchColumns(chunk=np.zeros(entries, np.uint32)),
    )
