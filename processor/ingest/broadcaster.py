"""Fan-out: hands what the gate admits to every consumer, in one order.

The gate calls in under its lock, so consumers see one batch at a time, all in the same order; they must not
call back. A consumer that raises costs the others nothing: the failure is counted, logged and returned, and
the gate decides what becomes of the batch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from processor.batch import Admission

logger = logging.getLogger(__name__)


class EventConsumer(Protocol):
    """Something that holds state built from admitted batches."""

    name: str

    def consume(self, admission: Admission) -> None:
        """Apply one admitted batch. All that can fail comes before the first entry is applied."""

    def fence(self, instance_id: str) -> None:
        """Drop what lived in the instance's memory: its L1 placements.

        Private ones go; shared ones that it reported become tombstones that keep their stamp.
        """

    def settle(self, instance_id: str) -> None:
        """The emitter has no open range any more: its private tombstones may go."""

    def expire(self, before: float) -> None:
        """Shared tombstones whose event time in seconds lies below `before` may go."""


class Broadcaster:
    """The consumers, by the order in which they hear of a batch.

    Attributes:
        consumers: fixed once events flow.
        failures: calls that raised, by the consumer's name.
    """

    def __init__(self, consumers: Sequence[EventConsumer] = ()) -> None:
        self.consumers: tuple[EventConsumer, ...] = tuple(consumers)
        self.failures: Counter[str] = Counter()

    def broadcast(
        self, admission: Admission, consumers: Sequence[EventConsumer] | None = None
    ) -> list[EventConsumer]:
        """Hand `admission` to `consumers`, by default to all; return those that raised."""
        failed: list[EventConsumer] = []
        for consumer in self.consumers if consumers is None else consumers:
            try:
                consumer.consume(admission)
            except Exception:
                batch = admission.batch
                what = f"batch {batch.seq} of {batch.instance_id}, incarnation {batch.incarnation}"
                self._note_failure(consumer, what)
                failed.append(consumer)
        return failed

    def fence(self, instance_id: str) -> None:
        """Tell every consumer that the instance's memory is gone."""
        self._tell("fence of " + instance_id, lambda consumer: consumer.fence(instance_id))

    def settle(self, instance_id: str) -> None:
        """Tell every consumer that the emitter has no open range any more."""
        self._tell("settling of " + instance_id, lambda consumer: consumer.settle(instance_id))

    def expire(self, before: float) -> None:
        """Tell every consumer up to when shared tombstones may go."""
        self._tell("expiry of tombstones", lambda consumer: consumer.expire(before))

    def _tell(self, what: str, call: Callable[[EventConsumer], None]) -> None:
        for consumer in self.consumers:
            try:
                call(consumer)
            except Exception:
                self._note_failure(consumer, what)

    def _note_failure(self, consumer: EventConsumer, what: str) -> None:
        self.failures[consumer.name] += 1
        logger.exception("%s failed at the %s", consumer.name, what)
