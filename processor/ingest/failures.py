"""Batches that some consumer did not take, and to whom they are still owed.

A consumer that raises costs the others nothing: the gate makes the batch a missing range and offers it again
to those consumers alone, so that nothing is counted twice. What this module keeps is bounded: first the
batches themselves, then the names of who lacks them; a late batch whose names were given up goes to
everyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from processor.batch import EventBatch
from processor.ingest.broadcaster import EventConsumer

MAX_REOFFERS = 3
"""How often a batch is offered again before it counts as lost."""
MAX_BATCHES = 256
"""Batches held for that at a time."""
MAX_KNOWN = 16_384
"""Batches of which it is known who lacks them."""

BatchId = tuple[str, int, int]
"""`(instance_id, incarnation, seq)`"""


@dataclass(frozen=True, slots=True)
class Failure:
    """One batch that `consumers` lack.

    Attributes:
        batch: None once it is given up; then only a new delivery can help.
        reoffers: how often it was offered again.
    """

    batch: EventBatch | None
    consumers: Sequence[EventConsumer]
    reoffers: int = 0


class Failures:
    """The batches owed to consumers."""

    def __init__(self) -> None:
        self._by_id: dict[BatchId, Failure] = {}
        self._held = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def hold(self, batch: EventBatch, consumers: Sequence[EventConsumer], before: Failure | None) -> bool:
        """Note that `consumers` did not take `batch`; return whether it will be offered again."""
        reoffers = 0 if before is None else before.reoffers + 1
        again = reoffers < MAX_REOFFERS and self._held < MAX_BATCHES
        if len(self._by_id) < MAX_KNOWN:
            self._by_id[id_of(batch)] = Failure(batch if again else None, consumers, reoffers)
            self._held += again
            return again
        return False

    def take(self, batch: EventBatch) -> Failure | None:
        """Remove and return what is known of a batch that arrived again."""
        failure = self._by_id.pop(id_of(batch), None)
        if failure is not None:
            self._held -= failure.batch is not None
        return failure

    def due(self) -> list[EventBatch]:
        """The batches to offer again, in the order in which they failed."""
        return [failure.batch for failure in self._by_id.values() if failure.batch is not None]

    def forget(self, instance_id: str) -> None:
        """Drop what is kept of an instance."""
        for owed in [known for known in self._by_id if known[0] == instance_id]:
            self._held -= self._by_id.pop(owed).batch is not None


def id_of(batch: EventBatch) -> BatchId:
    """What names the batch among those of all streams."""
    return batch.instance_id, batch.incarnation, batch.seq
