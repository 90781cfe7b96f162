"""One emitter's stream as the gate knows it: the cursor, and what is shown of it.

A cursor says up to where an incarnation's batches were admitted and which ones are lacking. Its epoch
numbers the cursors opened for one `instance_id`, so that stamps compare even where a clock, and with it the
incarnation, went backwards. The cursor also remembers the last few batches it let through, to tell a batch
that was merely sent twice from one that another process sent under the same id.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from processor.batch import EventBatch
from processor.ingest.backlog import Backlog, Elder
from processor.ingest.ranges import LossReason, RangeSet, RangeState, SeqRange
from processor.ingest.source import Position
from producer.events import EventType

REMEMBERED = 64
"""Batches whose outline is kept a stream."""
MAX_PAST = 1024
"""Incarnations whose epoch is remembered a stream."""
STALE_RUN = 3
"""So many stale batches with nothing between them mean that whoever sends them is heard only as stale."""

Outline = tuple[int, float, EventType, int]
"""`(seq, ts, event_type, number of entries)` of an applied batch."""


@dataclass(frozen=True, slots=True)
class LostRange:
    """Batches given up: `first` to `last` of an incarnation; `last` is None while the end is not known."""

    first: int
    last: int | None
    incarnation: int
    reason: LossReason | None


@dataclass(frozen=True, slots=True)
class ReplayStatus:
    """What replay does about a stream.

    Attributes:
        state: as `processor.ingest.replay.ReplayState` has them.
        partition: the one being read, None while none is.
        offset: the next one to read there.
        until: the offset that reading ends before.
    """

    state: str
    partition: int | None = None
    offset: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Reapplication:
    """A stream is to be put through once more, from a batch that a closed range lacks to its cursor."""

    incarnation: int
    first: int

    def covers(self, incarnation: int, seq: int) -> bool:
        """Whether a batch lies behind the beginning."""
        return (incarnation, seq) >= (self.incarnation, self.first)

    def as_range(self) -> SeqRange:
        """All behind the beginning, to be searched for; it is none of the stream's ranges."""
        return SeqRange(self.incarnation, 0, self.first, None)


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream as operators see it.

    Attributes:
        gap_detected: it lacks batches of its present incarnation, or still searches for some of an older one.
        conflict: someone else seems to send under the same `instance_id`.
        missing: `(first, last)` of each range being searched for, the oldest incarnation's first.
        lost: the ranges given up, whether a late batch would still repair them or not.
        missing_batches: how many batches `missing` covers.
        lost_batches: how many batches are lost; a range whose end is not known counts none.
        replay: what replay does about the gap, None if nothing.
        partition: the partition it was last heard on, None if it did not come from a log.
        offset: where on it.
        last_event_ts: the latest event time that was applied, in seconds.
    """

    instance_id: str
    incarnation: int
    epoch: int
    last_seq: int
    gap_detected: bool
    conflict: bool
    missing: list[tuple[int, int]]
    lost: list[LostRange]
    missing_batches: int = 0
    lost_batches: int = 0
    replay: ReplayStatus | None = None
    partition: int | None = None
    offset: int | None = None
    last_event_ts: float = 0.0


@dataclass(slots=True)
class Cursor:
    """Where an emitter's stream stands.

    Attributes:
        ranges: what it lacks, older incarnations' included.
        positions: the last record heard from, by partition.
        partition: the one of the latest record.
        last_event_ts: of the present incarnation.
        conflict: proven, until the stream is reset or starts anew.
        stale_run: stale batches since the last one of the present incarnation.
        gap_detected: as of the last reconciliation; the gate counts how often it changes.
        had_open: whether tombstones were kept as of the last reconciliation.
        reapply: what is being put through again.
        past: incarnation -> epoch of those before the present one, as far back as something is lacking.
        backlog: what was unread when the present incarnation opened, None once it was read.
        outlines: of the last batches, at `seq % REMEMBERED`.
    """

    instance_id: str
    incarnation: int
    epoch: int
    last_seq: int = 0
    ranges: RangeSet = field(default_factory=RangeSet)
    positions: dict[int, int] = field(default_factory=dict)
    partition: int | None = None
    last_event_ts: float = 0.0
    conflict: bool = False
    stale_run: int = 0
    gap_detected: bool = False
    had_open: bool = False
    reapply: Reapplication | None = None
    past: dict[int, int] = field(default_factory=dict)
    backlog: Backlog | None = None
    outlines: list[Outline | None] = field(default_factory=lambda: [None] * REMEMBERED)

    def renew(self, incarnation: int, epoch: int, backlog: Backlog | None = None) -> None:
        """Start afresh for a new incarnation; the ranges stay, for what they hold of L2.

        `backlog` is what was unread when it opened; what an earlier one told of older incarnations is kept.
        """
        if backlog is None:
            self.end_backlog()
        else:
            if self.backlog is not None:
                backlog.floor, backlog.late = self.backlog.floor, self.backlog.late
                backlog.elders = self.backlog.elders
            backlog.add(self.incarnation, Elder(self.epoch, self.last_seq))
            self.backlog = backlog
        self._remember_epoch()
        self.incarnation, self.epoch, self.last_seq = incarnation, epoch, 0
        self.last_event_ts, self.conflict, self.stale_run = 0.0, False, 0
        self.outlines = [None] * REMEMBERED

    @property
    def waits(self) -> bool:
        """A batch from the past may still be applied, so that deletes must leave tombstones."""
        heard_late = self.backlog is not None and self.backlog.late is not None
        return self.ranges.open > 0 or self.reapply is not None or heard_late

    def epoch_of(self, incarnation: int) -> int | None:
        """The epoch that an incarnation had, None if that is not known any more."""
        return self.epoch if incarnation == self.incarnation else self.past.get(incarnation)

    def follows(self, incarnation: int, position: Position | None) -> bool:
        """Whether a batch of an older incarnation comes from what was unread when the present one opened."""
        return (
            self.backlog is not None
            and position is not None
            and self.backlog.holds(position)
            and not self.ranges.tail(incarnation)
            and self.backlog.epoch_for(incarnation, self.epoch) is not None
        )

    def has_seen(self, incarnation: int, seq: int) -> bool:
        """Whether a batch of an older incarnation that is followed is not beyond what was seen of it."""
        elder = None if self.backlog is None else self.backlog.elders.get(incarnation)
        return elder is not None and seq <= elder.last_seq

    def hear_late(self, incarnation: int, seq: int, partition: int) -> tuple[int, int]:
        """Follow an older incarnation up to `seq`; return its epoch and what was seen of it before."""
        assert self.backlog is not None
        epoch = self.backlog.epoch_for(incarnation, self.epoch)
        assert epoch is not None
        self.past[incarnation] = epoch
        return epoch, self.backlog.hear(incarnation, seq, epoch, partition)

    def end_backlog(self) -> None:
        """What was unread when the present incarnation opened was read.

        If an older one spoke in it, deletes of newer ones that were read before left no tombstones against
        that. The stream is put through once more from there, so that they count.
        """
        if self.backlog is not None and self.backlog.late is not None:
            begin = self.backlog.late
            if self.reapply is not None:
                begin = min(begin, (self.reapply.incarnation, self.reapply.first))
            self.reapply = Reapplication(*begin)
        self.backlog = None

    def heard(self, position: Position | None) -> None:
        """Note where the latest record stood."""
        if position is not None:
            self.partition, offset = position
            self.positions[position[0]] = offset

    def leave_log(self) -> None:
        """Where records stood means nothing any more."""
        self.partition = None
        self.positions.clear()

    def note(self, batch: EventBatch) -> None:
        """Remember a batch of the present incarnation that was applied."""
        if batch.event_time > self.last_event_ts:
            self.last_event_ts = batch.event_time
        slot = batch.seq % REMEMBERED
        known = self.outlines[slot]
        if known is None or known[0] <= batch.seq:
            self.outlines[slot] = (batch.seq, batch.ts, batch.event_type, len(batch.columns.chunk))
        self.stale_run = 0

    def contradicts(self, batch: EventBatch) -> bool:
        """Whether a duplicate differs from what was applied under its number, as far as remembered."""
        known = self.outlines[batch.seq % REMEMBERED]
        if known is None or known[0] != batch.seq:
            return False
        return known != (batch.seq, batch.ts, batch.event_type, len(batch.columns.chunk))

    def in_conflict(self) -> bool:
        """Whether two processes seem to send under this id, or one does whose clock was set back."""
        return self.conflict or self.stale_run >= STALE_RUN

    def status(self, replay: ReplayStatus | None = None) -> StreamStatus:
        """The stream as operators see it, with what replay does about it."""
        missing: list[tuple[int, int]] = []
        lost: list[LostRange] = []
        missing_batches = lost_batches = newest = 0
        for held in self.ranges:
            if held.state is RangeState.MISSING and held.last is not None:
                first, incarnation = held.first, held.incarnation
                if missing and newest == incarnation and missing[-1][1] == first - 1:
                    # Batches held for a consumer are a range of their own, which shows to nobody.
                    first = missing.pop()[0]
                missing.append((first, held.last))
                missing_batches += held.batches
                newest = incarnation
            else:
                lost.append(LostRange(held.first, held.last, held.incarnation, held.reason))
                lost_batches += held.batches
        return StreamStatus(
            instance_id=self.instance_id,
            incarnation=self.incarnation,
            epoch=self.epoch,
            last_seq=self.last_seq,
            gap_detected=self.ranges.flags(self.incarnation),
            conflict=self.in_conflict(),
            missing=missing,
            lost=lost,
            missing_batches=missing_batches,
            lost_batches=lost_batches,
            replay=replay,
            partition=self.partition,
            offset=None if self.partition is None else self.positions[self.partition],
            last_event_ts=self.last_event_ts,
        )

    def _remember_epoch(self) -> None:
        lacking = next(iter(self.ranges), None)
        wanted = [] if lacking is None else [lacking.incarnation]
        if self.reapply is not None:
            wanted.append(self.reapply.incarnation)
        if self.backlog is not None:
            wanted += self.backlog.elders
        if not wanted:
            self.past.clear()
            return
        self.past[self.incarnation] = self.epoch
        for incarnation in [known for known in self.past if known < min(wanted)]:
            del self.past[incarnation]
        if len(self.past) > MAX_PAST:
            del self.past[min(self.past)]
