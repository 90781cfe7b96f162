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
class Unread:
    """What was unread when an incarnation opened, and the older ones that were found there or came before."""

    opened_on: int
    read: dict[int, int]
    ends: dict[int, int] | None
    """None until somebody has asked."""
    since: float
    floor: int
    """The last epoch before all of them."""
    seen: dict[int, int] = field(default_factory=dict)
    """Older incarnation -> the last batch seen of it."""
    epochs: dict[int, int] = field(default_factory=dict)
    on: dict[int, int] = field(default_factory=dict)
    """Older incarnation -> the partition where it was heard late."""
    late: Name | None = None
    """The earliest batch that was."""

    def holds(self, position: Position) -> bool:
        partition, offset = position
        if partition == self.opened_on or offset < self.read.get(partition, 0):
            return False
        return self.ends is None or offset < self.ends.get(partition, 0)

    def is_read(self, positions: dict[int, int]) -> bool:
        others = {p: end for p, end in (self.ends or {}).items() if p != self.opened_on}
        return self.ends is not None and all(positions.get(p, -1) >= end for p, end in others.items())

    def epoch_of(self, incarnation: int, top: int) -> int | None:
        """Between those of its neighbours: in the middle, or at most 512 from the one that it follows."""
        if incarnation in self.epochs:
            return self.epochs[incarnation]
        older = [epoch for known, epoch in self.epochs.items() if known < incarnation]
        newer = [epoch for known, epoch in self.epochs.items() if known > incarnation]
        low, high = max([self.floor, *older]), min([top, *newer])
        room = high - low
        if room < 2:
            return None
        if older:
            return low + max(1, min(room // 4, 512))
        return high - max(1, min(room // 8, 512)) if newer else low + room // 2


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
    unread: Unread | None = None
    """None once it was read."""
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
        heard_late = self.unread is not None and self.unread.late is not None
        return self.reapply is not None or heard_late or any(hole.open for hole in self.lacking)

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

    def finish_unread(self) -> None:
        """All of it was read; if an older incarnation spoke there, it goes through again from there."""
        if self.unread is not None and self.unread.late is not None:
            late = self.unread.late
            self.reapply = late if self.reapply is None else min(late, self.reapply)
        self.unread = None

    def follow(self, incarnation: int, seq: int, position: Position) -> int | None:
        """An older incarnation's batch comes late: what was seen before, None if it does not count."""
        unread = self.unread
        if unread is None or not unread.holds(position) or incarnation in self.tails:
            return None
        epoch = unread.epoch_of(incarnation, self.epoch)
        if epoch is None:
            return None
        before = unread.seen.get(incarnation, 0)
        if seq > before:
            unread.seen[incarnation], unread.on[incarnation] = seq, position[0]
            unread.epochs[incarnation] = self.past[incarnation] = epoch
            unread.late = min(unread.late or (incarnation, seq), (incarnation, seq))
        return before

    def renew(self, incarnation: int, epoch: int, unread: Unread | None) -> None:
        """Begin a new incarnation."""
        former = self.unread
        if unread is None:
            self.finish_unread()
        else:
            if former is not None:
                unread = replace(
                    former, **{k: getattr(unread, k) for k in ("opened_on", "read", "ends", "since")}
                )
            unread.seen[self.incarnation], unread.epochs[self.incarnation] = self.last_seq, self.epoch
            unread.on.pop(self.incarnation, None)
            self.unread = unread
        wanted = [hole.incarnation for hole in self.lacking]
        wanted += [] if self.reapply is None else [self.reapply[0]]
        wanted += [] if self.unread is None else list(self.unread.epochs)
        if not wanted:
            self.past.clear()
        else:
            self.past[self.incarnation] = self.epoch
            self.past = {known: at for known, at in self.past.items() if known >= min(wanted)}
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
