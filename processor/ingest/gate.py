"""The one way in: decides for every batch whether it reaches the consumers, and knows what each stream lacks.

What becomes of a batch is a table in `admission`; here it is carried out.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from processor.batch import EventBatch
from processor.ingest.admission import (
    ADMISSION,
    DEPARTED,
    KNOWN,
    KNOWN_OLDER,
    LATE_OLDER,
    NEWER,
    OLDER,
    Standing,
    standing_of,
)
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.capture import (
    ADDED_TO_GATE,
    Plain,
    capture_cursor,
    capture_marks,
    restore_cursors,
    restore_mark,
)
from processor.ingest.ledger import Ledger, Log
from processor.ingest.outcomes import GateCounters, IngestResult, IngestSummary
from processor.ingest.ranges import LossReason
from processor.ingest.repairs import Repairs
from processor.ingest.source import Mark, Position
from processor.ingest.stream import Cursor, StreamStatus
from producer.throttle import Throttle

logger = logging.getLogger(__name__)

REPAIR_WINDOW = 3600.0
"""Seconds for which a late batch still repairs a lost range."""


class EventGate:
    """The one way in. All methods may be called from any thread.

    Args:
        broadcaster: fans out what is admitted.
        repair_window: seconds for which a late batch still repairs a lost range.
        clock: seconds since the epoch.
        monotonic: seconds, for how often the log is written to.
        seekable: some source can read the log again. Without one, what is missing is lost at once.

    Attributes:
        repairs: what replay may do to the streams.
    """

    def __init__(
        self,
        broadcaster: Broadcaster,
        *,
        repair_window: float = REPAIR_WINDOW,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        seekable: bool = True,
    ) -> None:
        self._broadcaster = broadcaster
        self._repair_window = repair_window
        self._clock = clock
        self._seekable = seekable
        self._throttle = Throttle(clock=monotonic)
        # Reentrant for `quiesced` alone, whose caller captures under it.
        self._lock = threading.RLock()
        self._ledger = Ledger(broadcaster, clock)
        self.repairs = Repairs(self._ledger, self._lock, clock)

    def offer(self, batch: EventBatch, position: Position | None = None) -> IngestResult:
        """Admit `batch` or drop it. What is admitted has reached every consumer on return.

        `position` is where the log holds the batch, None if it did not come from one.
        """
        with self._lock:
            result = self._admit(batch, position)
            self._ledger.results[result] += 1
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
                self._ledger.marks[instance_id] = dict(mark)
            return self._ledger.forget(instance_id)

    def register_instance(self, instance_id: str) -> None:
        """The instance is (again) a member of the fleet: records from before its departure count again."""
        with self._lock:
            self._ledger.marks.pop(instance_id, None)

    @property
    def marked(self) -> bool:
        """Whether any departure has left a mark."""
        return bool(self._ledger.marks)

    def free_marks(self, starts: Mark) -> None:
        """Drop marks that lie before the log's start on every partition: they rule nothing out any more."""
        with self._lock:
            self._ledger.marks = {
                instance_id: mark
                for instance_id, mark in self._ledger.marks.items()
                if any(starts.get(partition, 0) < offset for partition, offset in mark.items())
            }

    def reset(self, instance_id: str) -> None:
        """End a conflict: fence and forget; the next batch opens a fresh cursor, whatever its incarnation.

        Raises:
            UnknownStream: nothing is known of the instance.
        """
        with self._lock:
            self._ledger.known(instance_id)
            self._ledger.marks.pop(instance_id, None)
            self._ledger.forget(instance_id)

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
            cursor = self._ledger.known(instance_id)
            named = incarnation is not None or first is not None or last is not None
            cursor.ranges.accept(incarnation, 1 if first is None else first, last, closed=named)
            self._ledger.reconcile(cursor)
            return self._ledger.status(cursor)

    def lose_tails(self, partition: int, reason: LossReason = LossReason.BEFORE_LOG) -> None:
        """The log of `partition` was cut where it was read: its emitters may have lost what comes next."""
        with self._lock:
            for cursor in self._ledger.cursors.values():
                if partition in cursor.positions:
                    self._lose_older_tails(cursor, partition, reason)
                    self._lose_tail(cursor, reason)

    def lose_log(self) -> None:
        """The log that was read is gone, and another stands in its place: its offsets mean nothing there."""
        with self._lock:
            for cursor in self._ledger.cursors.values():
                if not cursor.positions:
                    continue
                cursor.leave_log()
                self._lose_older_tails(cursor, None, LossReason.BEFORE_LOG)
                cursor.reapply = cursor.backlog = None
                self._lose_missing(cursor, LossReason.BEFORE_LOG)
                self._lose_tail(cursor, LossReason.BEFORE_LOG)
            # What a departed instance left unread is gone with it.
            self._ledger.marks = {}

    def stream(self, instance_id: str) -> StreamStatus | None:
        """One stream's status, None if it is not known."""
        with self._lock:
            cursor = self._ledger.cursors.get(instance_id)
            return None if cursor is None else self._ledger.status(cursor)

    def streams(self, gap: bool | None = None) -> list[StreamStatus]:
        """Every stream's status, by `instance_id`; with `gap`, only of those whose `gap_detected` is that."""
        with self._lock:
            statuses = [self._ledger.status(cursor) for _, cursor in sorted(self._ledger.cursors.items())]
        return [status for status in statuses if gap is None or status.gap_detected == gap]

    def counters(self) -> GateCounters:
        """The totals; does not wait for a batch under way."""
        return GateCounters(
            gaps=self._ledger.gaps,
            gaps_cleared=self._ledger.gaps_cleared,
            fences=self._ledger.fences,
            batches={result.value: count for result, count in self._ledger.results.items()},
            entries={kind.value: count for kind, count in self._ledger.entries.items()},
        )

    def follow(self, log: Log) -> None:
        """The batches come from `log`, which can be read again: note with every gap how far it was read."""
        self._ledger.log = log

    @contextmanager
    def quiesced(self) -> Iterator[None]:
        """Hold every batch back at the gate for as long as the context lasts.

        What every consumer holds is then the outcome of the same batches, those that `capture` tells of. The
        thread that holds it may call the gate.
        """
        with self._lock:
            yield

    def capture(self) -> Plain:
        """All that the gate knows of the streams, as plain data that JSON holds.

        Takes some microseconds a stream; call it under `quiesced` where it has to agree with consumers.
        """
        with self._lock:
            return {
                "streams": [capture_cursor(cursor) for cursor in self._ledger.cursors.values()],
                "epochs": self._ledger.epochs(),
                "epoch_floor": self._ledger.epoch_floor,
                "marks": capture_marks(self._ledger.marks),
            }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `capture` gave. For a gate that has admitted nothing yet; consumers hear nothing.

        Raises:
            KeyError, TypeError, ValueError: it is no such capture.
        """
        data = {**ADDED_TO_GATE, **data}
        with self._lock:
            cursors = restore_cursors(data["streams"])
            marks = {instance_id: restore_mark(mark) for instance_id, mark in data["marks"].items()}
            if not self._seekable:
                for cursor in cursors.values():
                    cursor.backlog = None
                    self._lose_missing(cursor, LossReason.NO_LOG)
            epochs = {str(name): int(epoch) for name, epoch in data["epochs"].items()}
            self._ledger.restore(cursors, epochs, int(data["epoch_floor"]))
            self._ledger.marks = marks

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
            self._ledger.offer_failures_again()
            for cursor in self._ledger.cursors.values():
                if cursor.ranges.open:
                    cursor.ranges.expire(now - self._repair_window, now)
                    self._ledger.reconcile(cursor)
            if self._ledger.open_streams == 0:
                self._broadcaster.expire(watermark - clock_skew)

    def _admit(self, batch: EventBatch, position: Position | None) -> IngestResult:
        cursor = self._ledger.cursors.get(batch.instance_id)
        departed = bool(self._ledger.marks) and self._ledger.departed(batch.instance_id, position)
        standing = standing_of(batch, cursor, departed, position)
        result = ADMISSION[standing]
        if result is IngestResult.ADMITTED:
            if cursor is None:
                cursor = self._ledger.open(batch.instance_id, batch.incarnation, position)
            elif standing is NEWER:
                self._ledger.renew(cursor, batch.incarnation, position)
            self._advance(cursor, batch, position)
        elif cursor is not None and standing is not DEPARTED:
            if standing is not OLDER:
                cursor.heard(position)
            if standing is LATE_OLDER:
                self._follow_older(cursor, batch, position)
            elif result is IngestResult.REPAIRED:
                self._repair(cursor, batch)
            elif standing is not KNOWN_OLDER:
                self._watch_for_conflict(cursor, batch, standing)
        return result

    def _advance(self, cursor: Cursor, batch: EventBatch, position: Position | None) -> None:
        """Apply a batch beyond the cursor, and move the cursor there."""
        if batch.seq != cursor.last_seq + 1 or cursor.ranges:
            self._expose(cursor, batch, position)
        cursor.last_seq = batch.seq
        cursor.heard(position)
        self._ledger.apply(cursor, batch, cursor.epoch)
        cursor.note(batch)
        if cursor.ranges or cursor.had_open or cursor.gap_detected:
            self._ledger.reconcile(cursor)

    def _expose(self, cursor: Cursor, batch: EventBatch, position: Position | None) -> None:
        """Note what lies between the cursor and a batch beyond it."""
        first, last = cursor.last_seq + 1, batch.seq - 1
        if cursor.ranges.tail(cursor.incarnation):
            cursor.ranges.end_tail(cursor.incarnation, last)
        elif first <= last:
            verdict = None if self._seekable else LossReason.NO_LOG
            self._ledger.add_range(cursor, first, last, verdict, position)
        else:
            return
        if last >= first:
            self._warn_of_gap(cursor, cursor.incarnation, first, last)

    def _follow_older(self, cursor: Cursor, batch: EventBatch, position: Position | None) -> None:
        """Apply what an older incarnation said, read after a newer one had opened."""
        assert position is not None
        incarnation = batch.incarnation
        epoch, seen = cursor.hear_late(incarnation, batch.seq, position.partition)
        if batch.seq > seen + 1:
            self._ledger.add_range(
                cursor, seen + 1, batch.seq - 1, None, position, older=(incarnation, epoch)
            )
            self._warn_of_gap(cursor, incarnation, seen + 1, batch.seq - 1)
        self._ledger.apply(cursor, batch, epoch, repaired=True)
        self._ledger.reconcile(cursor)

    def _repair(self, cursor: Cursor, batch: EventBatch) -> None:
        """Apply a batch that an open range holds."""
        held = cursor.ranges.repair(batch.incarnation, batch.seq)
        assert held is not None
        self._ledger.apply(cursor, batch, held.epoch, repaired=True)
        if batch.incarnation == cursor.incarnation:
            cursor.note(batch)
        self._ledger.reconcile(cursor)

    def _watch_for_conflict(self, cursor: Cursor, batch: EventBatch, standing: Standing) -> None:
        """See whether a batch that is dropped tells of another process under the same id."""
        if standing is KNOWN:
            cursor.stale_run = 0
            if cursor.contradicts(batch):
                cursor.conflict = True
                self._warn_of_conflict(cursor, f"batch {batch.seq} came twice, with different contents")
            return
        cursor.stale_run += 1
        # An incarnation whose own clock runs past what its successor said is alive beside it.
        if batch.ts > cursor.last_event_ts > 0:
            cursor.conflict = True
        if cursor.in_conflict():
            self._warn_of_conflict(cursor, f"the older incarnation {batch.incarnation} is heard")

    def _lose_missing(self, cursor: Cursor, reason: LossReason) -> None:
        for held in cursor.ranges:
            cursor.ranges.lose(held.incarnation, 1, None, reason, self._clock())

    def _lose_older_tails(self, cursor: Cursor, partition: int | None, reason: LossReason) -> None:
        """Older incarnations that were being read on a partition (None: on any) may have lost what comes."""
        if cursor.backlog is None:
            return
        for incarnation, elder in cursor.backlog.unfinished(partition).items():
            if not cursor.ranges.tail(incarnation):
                older = incarnation, elder.epoch
                self._ledger.add_range(cursor, elder.last_seq + 1, None, reason, older=older)

    def _lose_tail(self, cursor: Cursor, reason: LossReason) -> None:
        if not cursor.ranges.tail(cursor.incarnation):
            self._ledger.add_range(cursor, cursor.last_seq + 1, None, reason)
        self._ledger.reconcile(cursor)

    def _warn_of_gap(self, cursor: Cursor, incarnation: int, first: int, last: int) -> None:
        if self._throttle.due(("gap", cursor.instance_id)):
            what = f"batch {first}" if first == last else f"batches {first} to {last}"
            where = f"{cursor.instance_id}, incarnation {incarnation}"
            logger.warning("%s: %s did not come", where, what)

    def _warn_of_conflict(self, cursor: Cursor, what: str) -> None:
        if self._throttle.due(("conflict", cursor.instance_id)):
            where = f"{cursor.instance_id}, incarnation {cursor.incarnation}"
            hint = "two processes use one instance_id, or a clock was set back"
            logger.warning("%s: %s (%s)", where, what, hint)
