"""What replay may do to the streams: fill what is open, re-apply what is closed, give up what is not found.

Batches that come from replay were read live before, or lie where live reading has been. They never open a
cursor, move one on, fence an instance or prove a conflict; that is for live reading alone. All methods may be
called from any thread, and run under the gate's lock.

Re-applying puts a stream's batches through once more, from a closed range to the cursor. From its beginning
to its end the stream keeps its tombstones, so that the order in which partitions are read does not matter;
a checkpoint in between holds what is still to be done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from processor.batch import EventBatch
from processor.ingest.ledger import Ledger
from processor.ingest.outcomes import IngestResult
from processor.ingest.ranges import RangeState, SeqRange
from processor.ingest.search import Verdict
from processor.ingest.source import Mark, Position
from processor.ingest.stream import Cursor, Reapplication
from producer.events import EventType

_STATE_CHANGES = frozenset({EventType.STORE, EventType.DELETE})
"""What is applied again where it was applied before: accesses would count twice, and configurations are
stamped by themselves."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What a stream lacks, as of one moment.

    Attributes:
        wanted: ranges to search for.
        heard: the partitions that the stream was heard on.
        mark: of the instance's last departure; what the log holds before it is not the stream's any more.
        reapply: what is to be put through again, None if nothing.
    """

    instance_id: str
    wanted: tuple[SeqRange, ...]
    heard: frozenset[int]
    mark: Mark
    reapply: Reapplication | None


class Repairs:
    """The gate as replay sees it."""

    def __init__(
        self, ledger: Ledger, lock: AbstractContextManager[object], clock: Callable[[], float]
    ) -> None:
        self._ledger = ledger
        self._lock = lock
        self._clock = clock

    def gaps(self) -> list[Gap]:
        """Every stream with something to search for without being asked to."""
        with self._lock:
            if not self._ledger.open_streams:
                return []
            found = [
                self._gap(cursor, lambda held: held.state is RangeState.MISSING)
                for cursor in self._ledger.cursors.values()
                if cursor.had_open
            ]
        return [gap for gap in found if gap.wanted or gap.reapply]

    def request(self, instance_id: str, incarnation: int | None, first: int | None, last: int | None) -> Gap:
        """What an operator wants searched: every open range, or those that the other arguments name.

        Closed ranges must be named by at least one; the stream is then marked for being re-applied.

        Raises:
            UnknownStream: nothing is known of the instance.
        """
        with self._lock:
            cursor = self._ledger.known(instance_id)
            named = any(given is not None for given in (incarnation, first, last))
            gap = self._gap(
                cursor,
                lambda held: (
                    (named or held.is_open)
                    and incarnation in (None, held.incarnation)
                    and held.part(1 if first is None else first, last) is not None
                ),
            )
            closed = [held for held in gap.wanted if not held.is_open]
            if closed:
                begin = (closed[0].incarnation, max(closed[0].first, first or 1))
                if cursor.reapply is not None:
                    begin = min(begin, (cursor.reapply.incarnation, cursor.reapply.first))
                cursor.reapply = Reapplication(*begin)
                self._ledger.reconcile(cursor)
            wanted = tuple(held for held in gap.wanted if held.is_open)
            return replace(gap, wanted=wanted, reapply=cursor.reapply)

    def lacks(self, gap: Gap, *, open_only: bool = False) -> bool:
        """Whether anything of `gap` is still lacking, or (unless `open_only`) is still to be re-applied."""
        with self._lock:
            cursor = self._ledger.cursors.get(gap.instance_id)
            if cursor is None:
                return False
            if not open_only and gap.reapply is not None and cursor.reapply is gap.reapply:
                return True
            return any(cursor.ranges.lacks(wanted) for wanted in gap.wanted)

    def lacking(self, gap: Gap) -> int:
        """How many batches of `gap` a late one would still repair; 0 where no end is known."""
        with self._lock:
            cursor = self._ledger.cursors.get(gap.instance_id)
            return 0 if cursor is None else sum(map(cursor.ranges.lacking, gap.wanted))

    def note_ends(self, ends: Mark, asked: float) -> None:
        """Where the partitions ended at the time `asked`, or later, for all that was unread by then."""
        with self._lock:
            for cursor in self._ledger.cursors.values():
                if cursor.ranges.missing:
                    cursor.ranges.note_ends(ends, asked)
            for backlog in self._ledger.backlogs():
                backlog.note_ends(ends, asked)

    def asks_for_ends(self) -> bool:
        """Whether some stream follows older incarnations and does not know how far."""
        with self._lock:
            return any(backlog.horizon.ends is None for backlog in self._ledger.backlogs())

    def read_on(self, positions: Mark) -> None:
        """Live reading has come to `positions`: older incarnations are followed no longer up to there."""
        with self._lock:
            self._ledger.read_on(positions)

    def offer(self, batch: EventBatch, position: Position) -> IngestResult:
        """Apply `batch` if it is lacking, or is to be re-applied; REPAIRED if the stream lacked it."""
        with self._lock:
            result = self._offer(batch, position)
            if result is IngestResult.REPAIRED:
                self._ledger.results[result] += 1
            return result

    def give_up(self, instance_id: str, held: SeqRange, found: Iterable[Verdict]) -> int:
        """What of `held` is still missing is lost; return how many batches that were."""
        with self._lock:
            cursor = self._ledger.cursors.get(instance_id)
            if cursor is None:
                return 0
            before = cursor.ranges.missing_batches()
            for verdict in found:
                cursor.ranges.lose(
                    held.incarnation,
                    verdict.first,
                    verdict.last,
                    verdict.reason,
                    self._clock(),
                    epoch=held.epoch,
                )
            self._ledger.reconcile(cursor)
            return before - cursor.ranges.missing_batches()

    def finish(self, instance_id: str, reapply: Reapplication) -> None:
        """The stream was read again from where `reapply` says to its cursor."""
        with self._lock:
            cursor = self._ledger.cursors.get(instance_id)
            if cursor is not None and cursor.reapply is reapply:
                cursor.reapply = None
                self._ledger.reconcile(cursor)

    def _gap(self, cursor: Cursor, wanted: Callable[[SeqRange], bool]) -> Gap:
        # A range that is missing for a reason is being offered to the consumer that failed.
        ranges = tuple(
            held
            for held in cursor.ranges
            if wanted(held) and not (held.state is RangeState.MISSING and held.reason)
        )
        mark = self._ledger.marks.get(cursor.instance_id, {})
        return Gap(cursor.instance_id, ranges, frozenset(cursor.positions), mark, cursor.reapply)

    def _offer(self, batch: EventBatch, position: Position) -> IngestResult:
        cursor = self._ledger.cursors.get(batch.instance_id)
        if cursor is None or self._ledger.departed(batch.instance_id, position):
            return IngestResult.STALE
        if batch.incarnation == cursor.incarnation and batch.seq > cursor.last_seq:
            return IngestResult.DUPLICATE  # a lost tail may hold it, but live reading is still to come to it
        held = cursor.ranges.repair(batch.incarnation, batch.seq) if cursor.ranges.open else None
        if (
            held is None
            and cursor.reapply is not None
            and cursor.reapply.covers(batch.incarnation, batch.seq)
        ):
            held = cursor.ranges.reapply(batch.incarnation, batch.seq)
            if held is None:
                self._apply_again(cursor, batch)
        if held is None:
            return IngestResult.DUPLICATE
        self._ledger.apply(cursor, batch, held.epoch, repaired=True)
        if batch.incarnation == cursor.incarnation:
            cursor.note(batch)
        self._ledger.reconcile(cursor)
        return IngestResult.REPAIRED

    def _apply_again(self, cursor: Cursor, batch: EventBatch) -> None:
        epoch = cursor.epoch_of(batch.incarnation)
        if epoch is not None and batch.event_type in _STATE_CHANGES:
            self._ledger.apply_again(cursor, batch, epoch)
