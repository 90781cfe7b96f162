"""The streams' books: every cursor, what its ranges entail, and what goes out to the consumers because of it.

The gate decides what becomes of a batch; the ledger carries it out and keeps the sums right: how many streams
have something open, how often a gap showed and went, which consumers are owed a batch. It has no lock: the
gate's covers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from processor.batch import Admission, EventBatch
from processor.ingest.backlog import Backlog, next_epoch
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.failures import Failures
from processor.ingest.outcomes import IngestResult, UnknownStream
from processor.ingest.ranges import LossReason, RangeState, SeqRange
from processor.ingest.source import Horizon, Mark, Position
from processor.ingest.stream import Cursor, ReplayStatus, StreamStatus
from producer.events import EventType

MAX_FORGOTTEN = 4096
"""Forgotten instances whose last epoch is known by name; of all others only the greatest is."""


class Log(Protocol):
    """What the gate asks of a log that can be read again."""

    def positions(self) -> dict[int, int]:
        """The next offset to read of every partition. Must not call the gate."""

    def behind(self, partition: int) -> bool:
        """Whether any partition but that one may hold unread records. Must not call the gate."""

    def replay_status(self, instance_id: str) -> ReplayStatus | None:
        """What replay does about a stream. Must not call the gate."""


class Ledger:
    """The cursors of all streams.

    Attributes:
        cursors: by `instance_id`.
        forgotten: the last epoch of instances without a cursor, the one forgotten for longest first.
        epoch_floor: no instance that is neither known nor among the forgotten had an epoch above it.
        marks: of departures, by `instance_id`.
        open_streams: how many streams wait for batches from the past.
        behind: instances whose stream has a backlog, and maybe some others.
        log: set once there is one.
        results: batches offered, by what became of them.
        gaps, gaps_cleared, fences: totals since the start.
        entries: of applied batches.
    """

    def __init__(self, broadcaster: Broadcaster, clock: Callable[[], float]) -> None:
        self.cursors: dict[str, Cursor] = {}
        self.forgotten: dict[str, int] = {}
        self.epoch_floor = 0
        self.marks: dict[str, dict[int, int]] = {}
        self.failures = Failures()
        self.open_streams = 0
        self.behind: set[str] = set()
        self.results = dict.fromkeys(IngestResult, 0)
        self.log: Log | None = None
        self.gaps = self.gaps_cleared = self.fences = 0
        self.entries = dict.fromkeys(EventType, 0)
        self._broadcaster = broadcaster
        self._clock = clock

    def known(self, instance_id: str) -> Cursor:
        """The stream of an instance.

        Raises:
            UnknownStream: there is none.
        """
        try:
            return self.cursors[instance_id]
        except KeyError:
            raise UnknownStream(instance_id) from None

    def open(self, instance_id: str, incarnation: int, position: Position | None) -> Cursor:
        """A cursor for an instance that has none, opened by the record at `position`."""
        latest = self.forgotten.pop(instance_id, self.epoch_floor)
        backlog = self._backlog(instance_id, latest, position)
        cursor = Cursor(instance_id, incarnation, next_epoch(latest, backlog is not None), backlog=backlog)
        self.cursors[instance_id] = cursor
        return cursor

    def renew(self, cursor: Cursor, incarnation: int, position: Position | None) -> None:
        """The instance began anew: what was in its memory is gone."""
        self._fence(cursor.instance_id)
        backlog = self._backlog(cursor.instance_id, cursor.epoch, position)
        cursor.renew(incarnation, next_epoch(cursor.epoch, backlog is not None), backlog)

    def forget(self, instance_id: str) -> bool:
        """Fence an instance and drop its cursor; return whether there was one."""
        self._fence(instance_id)
        cursor = self.cursors.pop(instance_id, None)
        if cursor is None:
            return False
        cursor.ranges.accept(None, 1, None, closed=True)
        cursor.reapply = cursor.backlog = None
        self.reconcile(cursor)
        self.failures.forget(instance_id)
        self.forgotten[instance_id] = cursor.epoch
        if len(self.forgotten) > MAX_FORGOTTEN:
            # Whoever comes back later than that begins above it: epochs need to rise, not to be consecutive.
            self.epoch_floor = max(self.epoch_floor, self.forgotten.pop(next(iter(self.forgotten))))
        return True

    def apply(self, cursor: Cursor, batch: EventBatch, epoch: int, *, repaired: bool = False) -> None:
        """Hand a batch to the consumers that have not had it."""
        owed = self.failures.take(batch) if repaired and self.failures else None
        admission = self._admission(cursor, batch, epoch, repaired)
        failed = self._broadcaster.broadcast(admission, None if owed is None else owed.consumers)
        if owed is None:
            self.entries[batch.event_type] += len(batch.columns.chunk)
        if failed:
            held = self.failures.hold(batch, failed, owed)
            state = RangeState.MISSING if held else RangeState.LOST
            reason = LossReason.CONSUMER_FAILED
            cursor.ranges.add(
                SeqRange(batch.incarnation, epoch, batch.seq, batch.seq, state, reason, self._clock())
            )

    def apply_again(self, cursor: Cursor, batch: EventBatch, epoch: int) -> None:
        """Hand a batch out that was applied before; a consumer that fails has it all the same."""
        self._broadcaster.broadcast(self._admission(cursor, batch, epoch, repaired=True))

    def _admission(self, cursor: Cursor, batch: EventBatch, epoch: int, repaired: bool) -> Admission:
        return Admission(
            batch=batch,
            epoch=epoch,
            repaired=repaired,
            l1_void=batch.incarnation != cursor.incarnation,
            keep_tombstones=cursor.waits,
            # This stream's own share of the count is as of its last reconciliation.
            keep_contents=repaired or cursor.waits or self.open_streams > cursor.had_open,
        )

    def offer_failures_again(self) -> None:
        """Offer the batches that some consumer did not take once more."""
        for batch in self.failures.due():
            cursor = self.cursors[batch.instance_id]
            held = cursor.ranges.repair(batch.incarnation, batch.seq)
            if held is None:
                self.failures.take(batch)
            else:
                self.apply(cursor, batch, held.epoch, repaired=True)
                self.reconcile(cursor)

    def add_range(
        self,
        cursor: Cursor,
        first: int,
        last: int | None,
        verdict: LossReason | None,
        exposed_at: Position | None = None,
        older: tuple[int, int] | None = None,
    ) -> None:
        """Note that batches are lacking; `reconcile` must follow.

        They are of the present incarnation, or of the older one of which the number and epoch are given.
        """
        incarnation, epoch = older or (cursor.incarnation, cursor.epoch)
        state = RangeState.MISSING if verdict is None else RangeState.LOST
        horizon = None if self.log is None or verdict is not None else Horizon(self.log.positions())
        cursor.ranges.add(
            SeqRange(
                incarnation, epoch, first, last, state, verdict, self._clock(),
                exposed_at=exposed_at, horizon=horizon,
            )
        )  # fmt: skip

    def reconcile(self, cursor: Cursor) -> None:
        """Draw the consequences of what happened to a stream's ranges."""
        gap = cursor.ranges.flags(cursor.incarnation)
        if gap != cursor.gap_detected:
            cursor.gap_detected = gap
            self.gaps += gap
            self.gaps_cleared += not gap
        has_open = cursor.waits
        if has_open != cursor.had_open:
            cursor.had_open = has_open
            self.open_streams += 1 if has_open else -1
            if not has_open:
                self._broadcaster.settle(cursor.instance_id)

    def read_on(self, positions: Mark) -> None:
        """Every partition was read up to `positions`: end the backlogs that lie before."""
        for instance_id in list(self.behind):
            cursor = self.cursors.get(instance_id)
            if cursor is None or cursor.backlog is None:
                self.behind.discard(instance_id)
            elif cursor.backlog.passed(positions):
                cursor.end_backlog()
                self.reconcile(cursor)
                self.behind.discard(instance_id)

    def backlogs(self) -> list[Backlog]:
        """What streams still follow older incarnations in."""
        known = (self.cursors.get(instance_id) for instance_id in self.behind)
        return [cursor.backlog for cursor in known if cursor is not None and cursor.backlog is not None]

    def epochs(self) -> dict[str, int]:
        """The latest epoch of every instance known by name."""
        return self.forgotten | {cursor.instance_id: cursor.epoch for cursor in self.cursors.values()}

    def restore(self, cursors: dict[str, Cursor], epochs: dict[str, int], epoch_floor: int) -> None:
        """Take over what a checkpoint held; a gap that it held counts as one that showed now."""
        self.cursors, self.epoch_floor = cursors, epoch_floor
        self.forgotten = {name: epoch for name, epoch in epochs.items() if name not in cursors}
        self.failures = Failures()
        self.open_streams = 0
        self.behind = {name for name, cursor in cursors.items() if cursor.backlog is not None}
        for cursor in cursors.values():
            cursor.gap_detected = cursor.ranges.flags(cursor.incarnation)
            cursor.had_open = cursor.waits
            self.gaps += cursor.gap_detected
            self.open_streams += cursor.had_open

    def departed(self, instance_id: str, position: Position | None) -> bool:
        """Whether a record is from before the instance's departure."""
        mark = self.marks.get(instance_id)
        return mark is not None and position is not None and position.offset < mark.get(position.partition, 0)

    def status(self, cursor: Cursor) -> StreamStatus:
        """A stream as operators see it."""
        return cursor.status(None if self.log is None else self.log.replay_status(cursor.instance_id))

    def _backlog(self, instance_id: str, latest: int, position: Position | None) -> Backlog | None:
        """What an incarnation that opens at `position` may find unread, None if all was read."""
        if self.log is None or position is None or not self.log.behind(position.partition):
            return None
        self.behind.add(instance_id)
        return Backlog(position.partition, self._clock(), Horizon(self.log.positions()), floor=latest)

    def _fence(self, instance_id: str) -> None:
        self.fences += 1
        self._broadcaster.fence(instance_id)
