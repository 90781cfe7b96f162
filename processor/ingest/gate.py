"""Admission: decides for every batch whether it reaches the consumers, and knows what each stream lacks.

What becomes of a batch, by its incarnation and sequence number:

    current incarnation, in an open range        REPAIRED   applied; the range shrinks
    older incarnation, in an open range of it    REPAIRED   its L2 half applied
    older incarnation otherwise                  STALE      dropped
    newer incarnation                            ADMITTED   the instance is fenced; a fresh cursor
    seq <= last_seq otherwise                    DUPLICATE  dropped
    seq > last_seq + 1                           ADMITTED   the hole becomes a missing range
    next in order                                ADMITTED   applied
    from before the mark of a departure          STALE      dropped

Concurrency: one lock guards everything and is held across the fan-out, so consumers see the batches of a
stream in the order of their admission, whichever thread offers them, and a fence never overtakes a batch.
Consumers must not call back. A reader of `stream` or `streams` waits for the batch under way; `counters`
does not wait: it reads plain integers that only grow. The clock gives seconds since the epoch, since times
outlive the process in checkpoints.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from processor.batch import Admission, EventBatch
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.failures import Failures
from processor.ingest.outcomes import GateCounters, IngestResult, IngestSummary, UnknownStream
from processor.ingest.ranges import LossReason, RangeState, SeqRange
from processor.ingest.source import Mark, Position
from processor.ingest.stream import Cursor, LostRange, StreamStatus
from producer.events import EventType

__all__ = [
    "EventGate",
    "GateCounters",
    "IngestResult",
    "IngestSummary",
    "LostRange",
    "Position",
    "StreamStatus",
    "UnknownStream",
]

logger = logging.getLogger(__name__)

REPAIR_WINDOW = 3600.0
"""Seconds for which a late batch still repairs a lost range."""
LOG_INTERVAL = 60.0
"""Seconds between two log lines about one stream's gaps, and about its conflicts."""


class EventGate:
    """The one way in. All methods may be called from any thread.

    Args:
        broadcaster: fans out what is admitted.
        repair_window: seconds for which a late batch still repairs a lost range.
        clock: seconds since the epoch.
        seekable: some source can read the log again. Without one, what is missing is lost at once.
    """

    def __init__(
        self,
        broadcaster: Broadcaster,
        *,
        repair_window: float = REPAIR_WINDOW,
        clock: Callable[[], float] = time.time,
        seekable: bool = True,
    ) -> None:
        self._broadcaster = broadcaster
        self._repair_window = repair_window
        self._clock = clock
        self._seekable = seekable
        self._lock = threading.Lock()
        self._cursors: dict[str, Cursor] = {}
        self._epochs: dict[str, int] = {}
        self._marks: dict[str, dict[int, int]] = {}
        self._failures = Failures()
        self._open_streams = 0
        self._gaps = self._gaps_cleared = self._fences = 0
        self._batches = dict.fromkeys(IngestResult, 0)
        self._entries = dict.fromkeys(EventType, 0)

    def offer(self, batch: EventBatch, position: Position | None = None) -> IngestResult:
        """Admit `batch` or drop it. What is admitted has reached every consumer on return.

        `position` is where the log holds the batch, None if it did not come from one.
        """
        with self._lock:
            result = self._admit(batch, position)
            self._batches[result] += 1
            return result

    def offer_all(self, batches: Iterable[EventBatch], position: Position | None = None) -> IngestSummary:
        """Offer several batches in order, all of one record if there is a `position`."""
        summary = IngestSummary()
        for batch in batches:
            match self.offer(batch, position):
                case IngestResult.ADMITTED | IngestResult.REPAIRED:
                    summary.applied += 1
                case IngestResult.DUPLICATE:
                    summary.duplicates += 1
                case IngestResult.STALE:
                    summary.stale += 1
        return summary

    def drop_instance(self, instance_id: str, mark: Mark | None = None) -> bool:
        """Fence the instance and forget its stream; return whether there was one.

        With a `mark`, records that the log holds before it are stale until the instance registers again.
        """
        with self._lock:
            if mark is not None:
                self._marks[instance_id] = dict(mark)
            return self._forget(instance_id)

    def register_instance(self, instance_id: str) -> None:
        """The instance is (again) a member of the fleet: records from before its departure count again."""
        with self._lock:
            self._marks.pop(instance_id, None)

    def reset(self, instance_id: str) -> None:
        """End a conflict: fence and forget; the next batch opens a fresh cursor, whatever its incarnation.

        Raises:
            UnknownStream: nothing is known of the instance.
        """
        with self._lock:
            self._known(instance_id)
            self._marks.pop(instance_id, None)
            self._forget(instance_id)

    def accept_loss(
        self,
        instance_id: str,
        incarnation: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> StreamStatus:
        """Stop waiting for the batches from `first` to `last` of `incarnation`; return the stream afterwards.

        What is left out narrows nothing. Without any of the three, every open range is accepted; closed ones
        must be asked for by at least one.

        Raises:
            UnknownStream: nothing is known of the instance.
        """
        with self._lock:
            cursor = self._known(instance_id)
            named = incarnation is not None or first is not None or last is not None
            cursor.ranges.accept(incarnation, 1 if first is None else first, last, closed=named)
            self._reconcile(cursor)
            return cursor.status()

    def lose_tails(self, partition: int, reason: LossReason = LossReason.BEFORE_LOG) -> None:
        """The log of `partition` was cut where it was read: its emitters may have lost what comes next."""
        with self._lock:
            for cursor in self._cursors.values():
                if partition in cursor.positions and not cursor.ranges.tail(cursor.incarnation):
                    first = cursor.last_seq + 1
                    self._add_range(cursor, cursor.incarnation, cursor.epoch, first, None, reason)
                    self._reconcile(cursor)

    def stream(self, instance_id: str) -> StreamStatus | None:
        """One stream's status, None if it is not known."""
        with self._lock:
            cursor = self._cursors.get(instance_id)
            return None if cursor is None else cursor.status()

    def streams(self, gap: bool | None = None) -> list[StreamStatus]:
        """Every stream's status, by `instance_id`; with `gap`, only of those whose `gap_detected` is that."""
        with self._lock:
            statuses = [cursor.status() for _, cursor in sorted(self._cursors.items())]
        return [status for status in statuses if gap is None or status.gap_detected == gap]

    def counters(self) -> GateCounters:
        """The totals; does not wait for a batch under way."""
        return GateCounters(
            gaps=self._gaps,
            gaps_cleared=self._gaps_cleared,
            fences=self._fences,
            batches={result.value: count for result, count in self._batches.items()},
            entries={kind.value: count for kind, count in self._entries.items()},
        )

    def tick(self, now: float, watermark: float, clock_skew: float) -> None:
        """Housekeeping, once a second or so.

        Offers failed batches again, closes ranges whose time is up, and lets shared tombstones expire that no
        late batch can concern any more.

        Args:
            now: the time, in seconds since the epoch.
            watermark: up to which event time every partition has been read, 0 while unknown.
            clock_skew: seconds by which emitters' clocks may differ.
        """
        with self._lock:
            self._offer_failures_again()
            for cursor in self._cursors.values():
                if cursor.ranges.open:
                    cursor.ranges.expire(now - self._repair_window, now)
                    self._reconcile(cursor)
            if self._open_streams == 0:
                self._broadcaster.expire(watermark - clock_skew)

    def _admit(self, batch: EventBatch, position: Position | None) -> IngestResult:
        if self._marks and self._departed(batch.instance_id, position):
            return IngestResult.STALE
        cursor = self._cursors.get(batch.instance_id)
        if cursor is None:
            cursor = Cursor(batch.instance_id, batch.incarnation, self._next_epoch(batch.instance_id))
            self._cursors[batch.instance_id] = cursor
        elif batch.incarnation < cursor.incarnation:
            return self._admit_older(cursor, batch, position)
        elif batch.incarnation > cursor.incarnation:
            self._fence(batch.instance_id)
            cursor.renew(batch.incarnation, self._next_epoch(batch.instance_id))
        elif batch.seq <= cursor.last_seq:
            return self._admit_late(cursor, batch, position)
        if batch.seq != cursor.last_seq + 1 or cursor.ranges:
            self._expose(cursor, batch, position)
        cursor.last_seq = batch.seq
        cursor.heard(position)
        self._apply(cursor, batch, cursor.epoch)
        cursor.note(batch)
        if cursor.ranges or cursor.had_open or cursor.gap_detected:
            self._reconcile(cursor)
        return IngestResult.ADMITTED

    def _expose(self, cursor: Cursor, batch: EventBatch, position: Position | None) -> None:
        """Note what lies between the cursor and a batch beyond it."""
        first, last = cursor.last_seq + 1, batch.seq - 1
        if cursor.ranges.tail(cursor.incarnation):
            cursor.ranges.end_tail(cursor.incarnation, last)
        elif first <= last:
            verdict = None if self._seekable else LossReason.NO_LOG
            self._add_range(cursor, cursor.incarnation, cursor.epoch, first, last, verdict, position)
        else:
            return
        if last >= first and self._due(cursor.gap_logged):
            cursor.gap_logged = self._clock()
            where = f"{cursor.instance_id}, incarnation {cursor.incarnation}"
            logger.warning("%s: batches %d to %d did not come", where, first, last)

    def _admit_late(self, cursor: Cursor, batch: EventBatch, position: Position | None) -> IngestResult:
        cursor.heard(position)
        if not cursor.ranges.open or cursor.ranges.repair(batch.incarnation, batch.seq) is None:
            cursor.stale_run = 0
            if cursor.contradicts(batch):
                cursor.conflict = True
                self._warn_of_conflict(cursor, f"batch {batch.seq} came twice, with different contents")
            return IngestResult.DUPLICATE
        self._apply(cursor, batch, cursor.epoch, repaired=True)
        cursor.note(batch)
        self._reconcile(cursor)
        return IngestResult.REPAIRED

    def _admit_older(self, cursor: Cursor, batch: EventBatch, position: Position | None) -> IngestResult:
        held = cursor.ranges.repair(batch.incarnation, batch.seq) if cursor.ranges.open else None
        if held is None:
            cursor.stale_run += 1
            # An incarnation whose own clock runs past what its successor said is alive beside it.
            if batch.ts > cursor.last_event_ts > 0:
                cursor.conflict = True
            if cursor.in_conflict():
                self._warn_of_conflict(cursor, f"the older incarnation {batch.incarnation} is heard")
            return IngestResult.STALE
        cursor.heard(position)
        self._apply(cursor, batch, held.epoch, repaired=True)
        self._reconcile(cursor)
        return IngestResult.REPAIRED

    def _apply(self, cursor: Cursor, batch: EventBatch, epoch: int, *, repaired: bool = False) -> None:
        """Hand a batch to the consumers that have not had it."""
        owed = self._failures.take(batch) if repaired and self._failures else None
        admission = Admission(
            batch=batch,
            epoch=epoch,
            repaired=repaired,
            l1_void=batch.incarnation != cursor.incarnation,
            keep_tombstones=cursor.ranges.open > 0,
            # This stream's own share of the count is as of its last reconciliation.
            keep_contents=repaired or cursor.ranges.open > 0 or self._open_streams > cursor.had_open,
        )
        failed = self._broadcaster.broadcast(admission, None if owed is None else owed.consumers)
        if owed is None:
            self._entries[batch.event_type] += len(batch.columns.chunk)
        if failed:
            again = self._failures.hold(batch, failed, owed)
            verdict = None if again else LossReason.CONSUMER_FAILED
            self._add_range(cursor, batch.incarnation, epoch, batch.seq, batch.seq, verdict)

    def _offer_failures_again(self) -> None:
        for batch in self._failures.due():
            cursor = self._cursors[batch.instance_id]
            held = cursor.ranges.repair(batch.incarnation, batch.seq)
            if held is None:
                self._failures.take(batch)
            else:
                self._apply(cursor, batch, held.epoch, repaired=True)
                self._reconcile(cursor)

    def _add_range(
        self,
        cursor: Cursor,
        incarnation: int,
        epoch: int,
        first: int,
        last: int | None,
        verdict: LossReason | None,
        exposed_at: Position | None = None,
    ) -> None:
        state = RangeState.MISSING if verdict is None else RangeState.LOST
        since = self._clock()
        cursor.ranges.add(SeqRange(incarnation, epoch, first, last, state, verdict, since, exposed_at))

    def _reconcile(self, cursor: Cursor) -> None:
        """Draw the consequences of what happened to a stream's ranges."""
        gap = cursor.ranges.flags(cursor.incarnation)
        if gap != cursor.gap_detected:
            cursor.gap_detected = gap
            self._gaps += gap
            self._gaps_cleared += not gap
        has_open = cursor.ranges.open > 0
        if has_open != cursor.had_open:
            cursor.had_open = has_open
            self._open_streams += 1 if has_open else -1
            if not has_open:
                self._broadcaster.settle(cursor.instance_id)

    def _forget(self, instance_id: str) -> bool:
        self._fence(instance_id)
        cursor = self._cursors.pop(instance_id, None)
        if cursor is None:
            return False
        cursor.ranges.accept(None, 1, None, closed=True)
        self._reconcile(cursor)
        self._failures.forget(instance_id)
        return True

    def _fence(self, instance_id: str) -> None:
        self._fences += 1
        self._broadcaster.fence(instance_id)

    def _next_epoch(self, instance_id: str) -> int:
        epoch = self._epochs[instance_id] = self._epochs.get(instance_id, 0) + 1
        return epoch

    def _departed(self, instance_id: str, position: Position | None) -> bool:
        mark = self._marks.get(instance_id)
        return mark is not None and position is not None and position.offset < mark.get(position.partition, 0)

    def _known(self, instance_id: str) -> Cursor:
        try:
            return self._cursors[instance_id]
        except KeyError:
            raise UnknownStream(instance_id) from None

    def _warn_of_conflict(self, cursor: Cursor, what: str) -> None:
        if self._due(cursor.conflict_logged):
            cursor.conflict_logged = self._clock()
            where = f"{cursor.instance_id}, incarnation {cursor.incarnation}"
            hint = "two processes use one instance_id, or a clock was set back"
            logger.warning("%s: %s (%s)", where, what, hint)

    def _due(self, logged: float) -> bool:
        return self._clock() - logged >= LOG_INTERVAL
