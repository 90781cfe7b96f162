"""One emitter's stream as the model knows it: one hole a sequence number that is lacking.

A stream remembers every hole, that is every sequence number it has not seen below one it has, and every
batch it has applied. Ranges are what consecutive holes of one kind look like from outside.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from producer.events import CacheEventBatch

Position = tuple[int, int]
"""(partition, offset) of a record."""
Name = tuple[int, int]
"""(incarnation, seq) of a batch."""
STALE_RUN = 3
"""So many stale batches in a row mean that whoever sends them is heard only as stale."""


@dataclass
class Hole:
    """A sequence number that was skipped: lost if it has a reason, else missing; not open once given up."""

    incarnation: int
    seq: int
    epoch: int
    reason: str | None
    lost_since: float
    open: bool = True
    owed: bool = False
    """It was applied, but not by every consumer, and is still offered again."""


@dataclass
class Stream:
    incarnation: int
    epoch: int
    last_seq: int = 0
    contradicted: bool = False
    stale_run: int = 0
    """Stale batches since the last one of the present incarnation."""
    last_event_time: float = 0.0
    """Of the present incarnation."""
    heard_at: dict[int, int] = field(default_factory=dict)
    """The last offset heard from on each partition, the latest last."""
    holes: dict[tuple[int, int], Hole] = field(default_factory=dict)
    tails: dict[int, Hole] = field(default_factory=dict)
    """The log was cut under an incarnation: all from this hole on may be lost, up to its next batch."""
    gap_counted: bool = False
    """`gap_detected` as it was when it was last looked at."""
    reapply: Name | None = None
    """All from this batch on is being put through once more."""
    past: dict[int, int] = field(default_factory=dict)
    """Epochs of former incarnations, as far back as something is lacking."""
    applied: dict[tuple[int, int], tuple[float, str, int]] = field(default_factory=dict)

    @property
    def lacking(self) -> list[Hole]:
        return [*self.holes.values(), *self.tails.values()]

    @property
    def searched(self) -> list[Name]:
        """What replay looks for: all that is missing, save what a consumer is owed."""
        return sorted(name for name, hole in self.holes.items() if hole.reason is None and not hole.owed)

    @property
    def waits(self) -> bool:
        """A batch from the past may still be applied."""
        return self.reapply is not None or any(hole.open for hole in self.lacking)

    @property
    def gap_detected(self) -> bool:
        return any(h.incarnation == self.incarnation or h.reason is None for h in self.lacking)

    @property
    def conflict(self) -> bool:
        return self.contradicted or self.stale_run >= STALE_RUN

    def hear(self, position: Position | None) -> None:
        if position is not None:
            self.heard_at.pop(position[0], None)
            self.heard_at[position[0]] = position[1]

    def cut(self, incarnation: int, beyond: int) -> None:
        """Make holes of what the incarnation's tail holds below `beyond`, where it then begins."""
        tail = self.tails[incarnation]
        for seq in range(tail.seq, beyond):
            self.holes[incarnation, seq] = replace(tail, seq=seq)
        tail.seq = max(tail.seq, beyond)

    def take(self, incarnation: int, seq: int, *, closed: bool = False) -> Hole | None:
        """Fill the hole of that number, if there is one and it is open, or closed if that is asked for."""
        tail = self.tails.get(incarnation)
        if tail is not None and tail.open is not closed and seq >= tail.seq:
            self.cut(incarnation, seq + 1)
        hole = self.holes.get((incarnation, seq))
        return self.holes.pop((incarnation, seq)) if hole is not None and hole.open is not closed else None

    def renew(self, incarnation: int, epoch: int) -> None:
        """Begin a new incarnation."""
        if not self.lacking:
            self.past.clear()
        else:
            self.past[self.incarnation] = self.epoch
            oldest = min(hole.incarnation for hole in self.lacking)
            self.past = {known: at for known, at in self.past.items() if known >= oldest}
        self.incarnation, self.epoch = incarnation, epoch
        self.last_seq = self.stale_run = 0
        self.last_event_time, self.contradicted = 0.0, False

    def note(self, batch: CacheEventBatch, event_time: float) -> None:
        """A batch of the present incarnation was applied."""
        self.applied[batch.incarnation, batch.seq] = describe(batch)
        self.stale_run = 0
        self.last_event_time = max(self.last_event_time, event_time)


def describe(batch: CacheEventBatch) -> tuple[float, str, int]:
    """What a second delivery of the same batch must agree in."""
    return batch.ts, batch.event_type, len(batch.entries)
