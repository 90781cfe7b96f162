"""Ranges of sequence numbers that an emitter's stream lacks, and what becomes of them.

A range begins `missing`: nobody knows yet whether its batches still come. When they have been looked for
everywhere the range is `lost`, for a reason. Both are *open*: a batch that turns up repairs them. A lost
range is `closed` once its time is up; then its late batches count as duplicates. Open or closed, a range
goes only by being repaired or by an operator who accepts the loss.

    missing --verdict--> lost --expired--> closed        (crowded closes either one, past 1,024 ranges)
    missing | lost --arrived--> repaired                 closed --reapplied--> repaired
    missing | lost | closed --accepted--> accepted

`TRANSITIONS` is that picture, `RangeSet._move` the one place that changes a range's state. Ranges are
values: changing one replaces it, so a list of them that was handed out stays what it was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from processor.ingest.source import Horizon, Mark, Position
from producer.transitions import next_state

MAX_RANGES = 1024
"""Ranges kept for one emitter, over all its incarnations."""


class RangeState(StrEnum):
    """Where a range is in its life; the last two are its ends."""

    MISSING = "missing"
    LOST = "lost"
    CLOSED = "closed"
    REPAIRED = "repaired"
    ACCEPTED = "accepted"


class RangeEvent(StrEnum):
    """What can happen to a range."""

    ARRIVED = "arrived"
    """A batch of it was offered."""
    VERDICT = "verdict"
    """Whoever searched for it found nothing."""
    EXPIRED = "expired"
    """It was lost, and the time in which late batches are waited for is over."""
    CROWDED = "crowded"
    """The emitter has too many ranges, and this is among the oldest."""
    REAPPLIED = "reapplied"
    """The stream was read again, in order, across it."""
    ACCEPTED = "accepted"
    """An operator accepts the loss."""


TRANSITIONS: dict[tuple[RangeState, RangeEvent], RangeState] = {
    (RangeState.MISSING, RangeEvent.ARRIVED): RangeState.REPAIRED,
    (RangeState.MISSING, RangeEvent.VERDICT): RangeState.LOST,
    (RangeState.MISSING, RangeEvent.CROWDED): RangeState.CLOSED,
    (RangeState.MISSING, RangeEvent.ACCEPTED): RangeState.ACCEPTED,
    (RangeState.LOST, RangeEvent.ARRIVED): RangeState.REPAIRED,
    (RangeState.LOST, RangeEvent.EXPIRED): RangeState.CLOSED,
    (RangeState.LOST, RangeEvent.CROWDED): RangeState.CLOSED,
    (RangeState.LOST, RangeEvent.ACCEPTED): RangeState.ACCEPTED,
    (RangeState.CLOSED, RangeEvent.REAPPLIED): RangeState.REPAIRED,
    (RangeState.CLOSED, RangeEvent.ACCEPTED): RangeState.ACCEPTED,
}

OPEN_STATES = frozenset({RangeState.MISSING, RangeState.LOST})
"""In these a late batch repairs, and tombstones wait."""
_GONE = frozenset({RangeState.REPAIRED, RangeState.ACCEPTED})


class LossReason(StrEnum):
    """Why a range was given up."""

    NEVER_PRODUCED = "never_produced"
    BEFORE_LOG = "before_log"
    DEPARTED = "departed"
    UNDECODABLE = "undecodable"
    CONSUMER_FAILED = "consumer_failed"
    NO_LOG = "no_log"
    TOO_MANY_RANGES = "too_many_ranges"


@dataclass(frozen=True, slots=True)
class SeqRange:
    """Batches `first` to `last` of one incarnation that were not applied.

    Attributes:
        reason: of a lost one; a missing one has it while a batch is held for the consumer that failed.
        last: None for a lost tail: the next batch of the incarnation tells where it ends.
        epoch: of the cursor that the incarnation had.
        since: when it took its state, in seconds.
        exposed_at: the record that showed the gap, None if that did not come from a log.
        absent: how many batches it lacks if several ranges were merged into it, None if all that it spans.
        horizon: how far the log had been read when the gap showed, None if it did not show in a log.
    """

    incarnation: int
    epoch: int
    first: int
    last: int | None
    state: RangeState = RangeState.MISSING
    reason: LossReason | None = None
    since: float = 0.0
    exposed_at: Position | None = None
    absent: int | None = None
    horizon: Horizon | None = None

    @property
    def batches(self) -> int:
        """How many batches it lacks; 0 for a tail whose end is not known."""
        if self.absent is not None:
            return self.absent
        return 0 if self.last is None else self.last - self.first + 1

    @property
    def end(self) -> int:
        """The last batch that it is known to lack: of a tail, the first."""
        return self.first if self.last is None else self.last

    @property
    def is_open(self) -> bool:
        """A late batch would repair it."""
        return self.state in OPEN_STATES

    def part(self, first: int, last: int | None) -> SeqRange | None:
        """The part of it from `first` to `last` (None: without end), None if they do not meet."""
        first = max(first, self.first)
        last = self.last if last is None else last if self.last is None else min(last, self.last)
        if last is not None and first > last:
            return None
        absent = self.absent
        if absent is not None and last is not None:
            absent = min(absent, last - first + 1)
        return replace(self, first=first, last=last, absent=absent)

    def joins(self, other: SeqRange) -> bool:
        """`other` begins where this one ends and has come to the same point of its life.

        A tail joins nothing: how many batches it lacks is not known, and what is known is counted.
        """
        return (
            self.last is not None
            and other.last is not None
            and self.last + 1 == other.first
            and self.incarnation == other.incarnation
            and self.state is other.state
            and self.reason is other.reason
            and self.absent is None
            and other.absent is None
        )


def _order(held: SeqRange) -> tuple[int, int]:
    return held.incarnation, held.first


class RangeSet:
    """The ranges of one emitter, ordered by incarnation and sequence number, never overlapping.

    Attributes:
        open: how many are open.
        missing: how many are missing.
    """

    __slots__ = ("_ranges", "missing", "open")

    def __init__(self, ranges: list[SeqRange] | None = None) -> None:
        self._ranges = sorted(ranges or [], key=_order)
        self.open = sum(held.is_open for held in self._ranges)
        self.missing = sum(held.state is RangeState.MISSING for held in self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[SeqRange]:
        return iter(self._ranges.copy())

    def flags(self, incarnation: int) -> bool:
        """Whether a stream at `incarnation` has a gap: a range of that one, or a missing one of an older."""
        return bool(self._ranges) and (self._ranges[-1].incarnation == incarnation or self.missing > 0)

    def tail(self, incarnation: int) -> bool:
        """Whether the incarnation ends in a lost tail whose end is not known."""
        if not self._ranges:
            return False
        index = len(self._ranges) - 1
        if self._ranges[index].incarnation > incarnation:
            index = bisect_right(self._ranges, incarnation, key=lambda held: held.incarnation) - 1
        latest = self._ranges[index]
        return index >= 0 and latest.last is None and latest.incarnation == incarnation

    def add(self, new: SeqRange) -> None:
        """Put in a range that meets no other; past `MAX_RANGES` the oldest are closed and merged."""
        index = bisect_right(self._ranges, _order(new), key=_order)
        self._splice(index, index, [new])
        if index + 1 < len(self._ranges):
            self._join(index)
        if index > 0:
            self._join(index - 1)
        self._trim(new.since)

    def end_tail(self, incarnation: int, last: int) -> None:
        """Give the incarnation's tail its end; an empty one goes without trace."""
        tail = self._ranges[-1]
        assert tail.last is None and tail.incarnation == incarnation
        ended = [replace(tail, last=last)] if tail.first <= last else []
        self._splice(len(self._ranges) - 1, len(self._ranges), ended)

    def waits_for(self, incarnation: int, seq: int) -> bool:
        """Whether an open range holds `seq`."""
        index = self._holding(incarnation, seq) if self.open else None
        return index is not None and self._ranges[index].is_open

    def repair(self, incarnation: int, seq: int) -> SeqRange | None:
        """Take `seq` out of the open range that holds it and return that range; None if no open one does."""
        index = self._holding(incarnation, seq)
        if index is None or not self._ranges[index].is_open:
            return None
        held = self._ranges[index]
        self._move(index, seq, seq, RangeEvent.ARRIVED, held.since)
        self._trim(held.since)
        return held

    def reapply(self, incarnation: int, seq: int) -> SeqRange | None:
        """Take `seq` out of the closed range that holds it, and return that; None if no closed one does."""
        index = self._holding(incarnation, seq)
        if index is None or self._ranges[index].state is not RangeState.CLOSED:
            return None
        held = self._ranges[index]
        self._move(index, seq, seq, RangeEvent.REAPPLIED, held.since)
        self._trim(held.since)
        return held

    def lose(
        self,
        incarnation: int,
        first: int,
        last: int | None,
        reason: LossReason,
        now: float,
        *,
        epoch: int | None = None,
    ) -> None:
        """Give up what is missing between `first` and `last` (None: without end), of one epoch or of any."""
        for index in self._meeting(incarnation, first, last):
            held = self._ranges[index]
            # One that has a reason already is being offered to the consumer that failed.
            searched = held.state is RangeState.MISSING and held.reason is None
            if searched and epoch in (None, held.epoch):
                self._move(index, first, last, RangeEvent.VERDICT, now, reason)
        self._trim(now)

    def expire(self, before: float, now: float) -> None:
        """Close what was lost before the time `before`."""
        for index, held in enumerate(self._ranges):
            if held.state is RangeState.LOST and held.since < before:
                self._move(index, held.first, held.last, RangeEvent.EXPIRED, now)

    def accept(self, incarnation: int | None, first: int, last: int | None, *, closed: bool) -> None:
        """Drop what lies between `first` and `last` (None: without end), of one incarnation or (None) of all.

        Closed ranges go only if `closed` says so. A tail goes whole or not at all: no number of it is known
        to be lost before the next batch has come.
        """
        for index in self._meeting(incarnation, first, last):
            held = self._ranges[index]
            part_of_tail = held.last is None and (last is not None or first > held.first)
            if not part_of_tail and (closed or held.is_open):
                self._move(index, first, last, RangeEvent.ACCEPTED, held.since)
        self._trim(0.0)

    def note_ends(self, ends: Mark, asked: float) -> None:
        """Where the log ended at the time `asked` or later, for what was missing by then."""
        self._ranges = [
            replace(held, horizon=replace(held.horizon, ends=ends))
            if held.horizon is not None and held.horizon.ends is None and held.since <= asked
            else held
            for held in self._ranges
        ]

    def lacks(self, wanted: SeqRange) -> bool:
        """Whether a batch of `wanted` would still repair an open range."""
        return any(
            self._ranges[index].is_open and self._ranges[index].epoch == wanted.epoch
            for index in self._meeting(wanted.incarnation, wanted.first, wanted.last)
        )

    def lacking(self, wanted: SeqRange) -> int:
        """How many batches of `wanted` would still repair an open range."""
        meeting = (
            self._ranges[index] for index in self._meeting(wanted.incarnation, wanted.first, wanted.last)
        )
        parts = (
            held.part(wanted.first, wanted.last)
            for held in meeting
            if held.is_open and held.epoch == wanted.epoch
        )
        return sum(part.batches for part in parts if part is not None)

    def missing_batches(self) -> int:
        """How many batches are missing."""
        return sum(held.batches for held in self._ranges if held.state is RangeState.MISSING)

    def _holding(self, incarnation: int, seq: int) -> int | None:
        index = bisect_right(self._ranges, (incarnation, seq), key=_order) - 1
        if index < 0:
            return None
        held = self._ranges[index]
        within = held.incarnation == incarnation and (held.last is None or held.last >= seq)
        return index if within else None

    def _meeting(self, incarnation: int | None, first: int, last: int | None) -> list[int]:
        # Backwards, so that moving one range leaves the indices of those still to come as they are.
        return [
            index
            for index, held in reversed(list(enumerate(self._ranges)))
            if incarnation in (None, held.incarnation) and held.part(first, last) is not None
        ]

    def _move(
        self,
        index: int,
        first: int,
        last: int | None,
        event: RangeEvent,
        now: float,
        reason: LossReason | None = None,
    ) -> None:
        """Let `event` happen to the part of a range from `first` to `last`; the rest stays as it was."""
        held = self._ranges[index]
        state = next_state(TRANSITIONS, held.state, event)
        before = held.part(held.first, first - 1)
        moved = held.part(first, last)
        after = None if last is None else held.part(last + 1, held.last)
        if state in _GONE:
            moved = None
        elif moved is not None:
            # Nothing is searched for any more, so that how far the log was read matters no longer.
            moved = replace(moved, state=state, reason=reason or moved.reason, since=now, horizon=None)
        self._splice(index, index + 1, [piece for piece in (before, moved, after) if piece is not None])

    def _splice(self, start: int, stop: int, pieces: list[SeqRange]) -> None:
        for held in self._ranges[start:stop]:
            self.open -= held.is_open
            self.missing -= held.state is RangeState.MISSING
        for piece in pieces:
            self.open += piece.is_open
            self.missing += piece.state is RangeState.MISSING
        self._ranges[start:stop] = pieces

    def _join(self, index: int) -> None:
        left, right = self._ranges[index : index + 2]
        if left.joins(right):
            horizon = right.horizon.joined(left.horizon) if right.horizon else left.horizon
            since = max(left.since, right.since)
            joined = replace(right, first=left.first, since=since, horizon=horizon)
            self._splice(index, index + 2, [joined])

    def _trim(self, now: float) -> None:
        while len(self._ranges) > MAX_RANGES:
            self._merge_oldest(now)

    def _merge_oldest(self, now: float) -> None:
        for index in (0, 1):
            held = self._ranges[index]
            if held.is_open:
                reason = held.reason or LossReason.TOO_MANY_RANGES
                self._move(index, held.first, held.last, RangeEvent.CROWDED, now, reason)
        older, newer = self._ranges[:2]
        absent = older.batches + newer.batches
        if older.incarnation == newer.incarnation:
            merged = replace(newer, first=older.first, absent=absent)
        else:
            # Sequence numbers of two incarnations make no span; the older one lives on in the count.
            merged = replace(newer, absent=absent)
        self._splice(0, 2, [merged])
