"""The gate as the design words it: one sequence number at a time, nothing merged, nothing fast.

Consumers are told in the order that the design gives: fence, then the batch, then that the stream has no open
hole any more. One that refuses a batch is owed it, and nobody else hears of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from producer.events import CacheEventBatch
from tests.model.stream import Hole, Position, Stream, Unread, describe

MAX_REOFFERS = 3
"""How often a batch is offered again to those that refused it."""


class Result(StrEnum):
    ADMITTED = "admitted"
    REPAIRED = "repaired"
    DUPLICATE = "duplicate"
    STALE = "stale"


@dataclass(frozen=True)
class Admitted:
    """A batch with what its stream's state says about it."""

    batch: CacheEventBatch
    event_time: float
    generation: int
    epoch: int
    repaired: bool
    l1_void: bool
    keep_tombstones: bool
    """Its emitter has an open range."""
    keep_contents: bool
    """Some emitter has an open range, or had one until this batch."""


class Refused(Exception):
    """What a consumer raises that does not take a batch."""


class Consumer(Protocol):
    def consume(self, admitted: Admitted) -> None: ...
    def fence(self, instance_id: str) -> None: ...
    def settle(self, instance_id: str) -> None: ...
    def expire(self, before: float) -> None: ...


class Log(Protocol):
    """What is read."""

    def behind(self, partition: int) -> bool: ...
    def positions(self) -> dict[int, int]: ...


@dataclass
class Owed:
    """A batch that some consumers refused."""

    admitted: Admitted
    to: list[Consumer]
    reoffers: int


class Gate:
    def __init__(self, *consumers: Consumer, repair_window: float = 3600.0, seekable: bool = True) -> None:
        self.consumers = list(consumers)
        self.seekable = seekable
        self.repair_window = repair_window
        self.log: Log | None = None
        self.streams: dict[str, Stream] = {}
        self.epochs: dict[str, int] = {}
        self.marks: dict[str, dict[int, int]] = {}
        self.owed: dict[tuple[str, int, int], Owed] = {}
        self.gaps = self.gaps_cleared = 0
        """How often a stream's flag turned, whatever happened to it in between."""

    def offer(
        self,
        batch: CacheEventBatch,
        position: Position | None = None,
        *,
        event_time: float | None = None,
        generation: int = 0,
        now: float = 0.0,
    ) -> Result:
        instance_id, name = batch.instance_id, (batch.incarnation, batch.seq)
        if self._departed(instance_id, position):
            return Result.STALE

        stream = self.streams.get(instance_id)
        if stream is None or batch.incarnation > stream.incarnation:
            unread = self._unread(instance_id, position, now)
            epoch = self._next_epoch(instance_id, unread is not None)
            if stream is None:
                stream = self.streams[instance_id] = Stream(batch.incarnation, epoch, unread=unread)
            else:
                self._fence(instance_id)
                stream.renew(batch.incarnation, epoch, unread)

        is_next = batch.incarnation == stream.incarnation and batch.seq > stream.last_seq
        hole = None if is_next else stream.take(*name)
        if is_next:
            self._expose(stream, batch, now)
            stream.last_seq = batch.seq
            result, epoch = Result.ADMITTED, stream.epoch
        elif hole is not None:
            result, epoch = Result.REPAIRED, hole.epoch
        elif batch.incarnation < stream.incarnation:
            seen = None if position is None else stream.follow(*name, position)
            if seen is not None:
                return self._hear_late(stream, batch, seen, position, event_time, generation, now)
            stream.stale_run += 1
            # An incarnation whose own clock runs past what its successor said is alive beside it.
            stream.contradicted |= batch.ts > stream.last_event_time > 0
            return Result.STALE
        else:
            stream.hear(position)
            stream.stale_run = 0
            stream.contradicted |= stream.applied.get(name, describe(batch)) != describe(batch)
            return Result.DUPLICATE

        stream.hear(position)
        time = event_time if event_time is not None else batch.ts
        if batch.incarnation == stream.incarnation:
            stream.note(batch, time)
        repaired = result is Result.REPAIRED
        self._apply(stream, self._admitted(stream, batch, time, generation, epoch, repaired), now)
        self._settle(instance_id)
        return result

    def read_again(
        self,
        batch: CacheEventBatch,
        position: Position,
        *,
        event_time: float,
        generation: int,
        now: float,
    ) -> Result:
        """Replay came by a batch: it fills a hole, or is put through again, and does nothing else."""
        name = batch.incarnation, batch.seq
        stream = self.streams.get(batch.instance_id)
        if stream is None or self._departed(batch.instance_id, position):
            return Result.STALE
        if batch.incarnation == stream.incarnation and batch.seq > stream.last_seq:
            return Result.DUPLICATE
        hole = stream.take(*name)
        if hole is None and stream.reapply is not None and name >= stream.reapply:
            hole = stream.take(*name, closed=True)
            epoch = {**stream.past, stream.incarnation: stream.epoch}.get(batch.incarnation)
            if hole is None and epoch is not None and batch.event_type in ("store", "delete"):
                again = self._admitted(stream, batch, event_time, generation, epoch, True)
                self._hand_out(again, self.consumers)
        if hole is None:
            return Result.DUPLICATE
        if batch.incarnation == stream.incarnation:
            stream.note(batch, event_time)
        self._apply(stream, self._admitted(stream, batch, event_time, generation, hole.epoch, True), now)
        self._settle(batch.instance_id)
        return Result.REPAIRED

    def give_up(
        self, instance_id: str, incarnation: int, first: int, last: int, reason: str, now: float
    ) -> int:
        """Replay did not find what is missing from `first` to `last`; how many batches that is."""
        stream = self.streams[instance_id]
        lost = [
            hole
            for name, hole in stream.holes.items()
            if hole.reason is None and not hole.owed and (incarnation, first) <= name <= (incarnation, last)
        ]
        for hole in lost:
            hole.reason, hole.lost_since = reason, now
        self._settle(instance_id)
        return len(lost)

    def request(self, instance_id: str, incarnation: int | None, first: int | None, last: int | None) -> None:
        """An operator asks for a replay; closed holes that are named have the stream put through again."""
        stream = self.streams[instance_id]
        if (incarnation, first, last) == (None, None, None):
            return
        closed = [name for name, hole in stream.holes.items() if not hole.open]
        closed += [(number, max(t.seq, first or 1)) for number, t in stream.tails.items() if not t.open]
        named = [
            (number, seq)
            for number, seq in closed
            if incarnation in (None, number) and seq >= (first or 1) and (last is None or seq <= last)
        ]
        if named:
            stream.reapply = min(named if stream.reapply is None else [*named, stream.reapply])

    def finish(self, instance_id: str) -> None:
        """The stream was put through to its end."""
        self.streams[instance_id].reapply = None
        self._settle(instance_id)

    def die_and_return(self, now: float) -> None:
        """What the process alone knew is gone: who is owed what, and what batches looked like."""
        for instance_id, incarnation, seq in self.owed:
            hole = self.streams[instance_id].holes.get((incarnation, seq))
            if hole is not None:
                hole.owed = False
        self.owed.clear()
        for stream in self.streams.values():
            stream.applied.clear()
            for hole in stream.holes.values():
                if hole.reason is None and not self.seekable:
                    hole.reason, hole.lost_since = "no_log", now
            stream.gap_counted = stream.gap_detected
        self.gaps, self.gaps_cleared = sum(stream.gap_counted for stream in self.streams.values()), 0

    def drop_instance(self, instance_id: str, mark: dict[int, int] | None = None) -> None:
        """The instance departed; what the log holds of it before `mark`, its end offsets, is stale."""
        self._forget(instance_id)
        if mark is not None:
            self.marks[instance_id] = dict(mark)

    def register_instance(self, instance_id: str) -> None:
        self.marks.pop(instance_id, None)

    def reset(self, instance_id: str) -> None:
        self.marks.pop(instance_id, None)
        self._forget(instance_id)

    def accept_loss(
        self,
        instance_id: str,
        incarnation: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        """What is left out narrows nothing; closed holes go only if something is named."""
        stream = self.streams[instance_id]
        named = (incarnation, first, last) != (None, None, None)
        for number, tail in list(stream.tails.items()):
            whole = last is None and (first or 1) <= tail.seq
            if whole and (tail.open or named) and incarnation in (None, number):
                del stream.tails[number]
        for name, hole in list(stream.holes.items()):
            if (
                (hole.open or named)
                and (incarnation is None or hole.incarnation == incarnation)
                and (first is None or hole.seq >= first)
                and (last is None or hole.seq <= last)
            ):
                del stream.holes[name]
        self._settle(instance_id)

    def tick(self, now: float, watermark: float, clock_skew: float) -> None:
        for name, owed in list(self.owed.items()):
            instance_id, incarnation, seq = name
            stream = self.streams[instance_id]
            if owed.reoffers >= MAX_REOFFERS:
                continue
            hole = stream.take(incarnation, seq)
            if hole is None:
                del self.owed[name]
                continue
            before = owed.admitted
            self._apply(
                stream,
                self._admitted(stream, before.batch, before.event_time, before.generation, hole.epoch, True),
                now,
            )
            self._settle(instance_id)
        for instance_id, stream in self.streams.items():
            for hole in stream.lacking:
                if hole.reason is not None and now - hole.lost_since > self.repair_window:
                    hole.open = False
            self._settle(instance_id)
        if not self.anyone_waits:
            for consumer in self.consumers:
                consumer.expire(watermark - clock_skew)

    def lose_tails(self, partition: int, now: float) -> None:
        """The log was cut where it is read: whoever spoke there may have lost what it says next."""
        for instance_id, stream in self.streams.items():
            if partition in stream.heard_at:
                self._lose_older_tails(stream, {partition}, now)
                self._lose_tail(stream, now)
                self._settle(instance_id)

    def lose_log(self, now: float) -> None:
        """Another log stands in the place of the one that was read; nothing can be looked for any more."""
        for stream in self.streams.values():
            if not stream.heard_at:
                continue
            self._lose_older_tails(stream, set(stream.heard_at), now)
            stream.heard_at.clear()
            stream.reapply = stream.unread = None
            for hole in stream.holes.values():
                if hole.reason is None and not hole.owed:
                    hole.reason, hole.lost_since = "before_log", now
            self._lose_tail(stream, now)
        self.marks = {}
        for instance_id in self.streams:
            self._settle(instance_id)

    @property
    def anyone_waits(self) -> bool:
        return any(stream.waits for stream in self.streams.values())

    def _expose(self, stream: Stream, batch: CacheEventBatch, now: float) -> None:
        """What lies between the last batch and this one is missing, or was lost with the tail of the log."""
        if stream.incarnation in stream.tails:
            stream.cut(stream.incarnation, batch.seq)
            del stream.tails[stream.incarnation]
            return
        reason = None if self.seekable else "no_log"
        for seq in range(stream.last_seq + 1, batch.seq):
            stream.holes[batch.incarnation, seq] = Hole(batch.incarnation, seq, stream.epoch, reason, now)

    def _hear_late(
        self,
        stream: Stream,
        batch: CacheEventBatch,
        seen: int,
        position: Position | None,
        event_time: float | None,
        generation: int,
        now: float,
    ) -> Result:
        """An older incarnation speaks from where reading had yet to come when the present one opened."""
        stream.hear(position)
        if batch.seq <= seen:
            return Result.DUPLICATE
        epoch = stream.past[batch.incarnation]
        for seq in range(seen + 1, batch.seq):
            stream.holes[batch.incarnation, seq] = Hole(batch.incarnation, seq, epoch, None, now)
        time = event_time if event_time is not None else batch.ts
        self._apply(stream, self._admitted(stream, batch, time, generation, epoch, True), now)
        self._settle(batch.instance_id)
        return Result.REPAIRED

    def note_ends(self, ends: dict[int, int], asked: float) -> None:
        """Where the partitions ended at the time `asked`, or later."""
        for stream in self.streams.values():
            if stream.unread is not None and stream.unread.ends is None and stream.unread.since <= asked:
                stream.unread.ends = ends

    def read_on(self, positions: dict[int, int]) -> None:
        """Live reading has come to `positions`."""
        for instance_id, stream in self.streams.items():
            if stream.unread is not None and stream.unread.is_read(positions):
                stream.finish_unread()
                self._settle(instance_id)

    def _unread(self, instance_id: str, position: Position | None, now: float) -> Unread | None:
        if position is None or self.log is None or not self.log.behind(position[0]):
            return None
        return Unread(position[0], self.log.positions(), None, now, self.epochs.get(instance_id, 0))

    def _next_epoch(self, instance_id: str, unread: bool) -> int:
        """One more; where older incarnations may turn up, with room for theirs below it."""
        self.epochs[instance_id] = self.epochs.get(instance_id, 0) + (2**18 if unread else 1)
        return self.epochs[instance_id]

    def _lose_older_tails(self, stream: Stream, partitions: set[int], now: float) -> None:
        """What was heard late of an older incarnation may have had more to come, if no newer one followed."""
        on = {} if stream.unread is None else stream.unread.on
        for partition in partitions:
            heard = [incarnation for incarnation, where in on.items() if where == partition]
            if stream.unread is not None and heard and max(heard) not in stream.tails:
                oldest = max(heard)
                hole = Hole(oldest, stream.unread.seen[oldest] + 1, stream.past[oldest], "before_log", now)
                stream.tails[oldest] = hole

    def _lose_tail(self, stream: Stream, now: float) -> None:
        if stream.incarnation not in stream.tails:
            stream.tails[stream.incarnation] = Hole(
                stream.incarnation, stream.last_seq + 1, stream.epoch, "before_log", now
            )

    def _departed(self, instance_id: str, position: Position | None) -> bool:
        return position is not None and position[1] < self.marks.get(instance_id, {}).get(position[0], 0)

    def _admitted(
        self,
        stream: Stream,
        batch: CacheEventBatch,
        event_time: float,
        generation: int,
        epoch: int,
        repaired: bool,
    ) -> Admitted:
        return Admitted(
            batch=batch,
            event_time=event_time,
            generation=generation,
            epoch=epoch,
            repaired=repaired,
            l1_void=batch.incarnation < stream.incarnation,
            keep_tombstones=stream.waits,
            keep_contents=repaired or self.anyone_waits,
        )

    def _apply(self, stream: Stream, admitted: Admitted, now: float) -> None:
        """Hand a batch to those that lack it; who refuses it is owed it."""
        batch = admitted.batch
        name = batch.instance_id, batch.incarnation, batch.seq
        owed = self.owed.pop(name, None) if admitted.repaired else None
        refused = self._hand_out(admitted, self.consumers if owed is None else owed.to)
        if not refused:
            return
        reoffers = 0 if owed is None else owed.reoffers + 1
        again = reoffers < MAX_REOFFERS
        self.owed[name] = Owed(admitted, refused, reoffers)
        reason = None if again else "consumer_failed"
        stream.holes[name[1:]] = Hole(*name[1:], admitted.epoch, reason, now, owed=again)
        if not again:
            self._lose_with_neighbours(stream, *name[1:], now)

    def _lose_with_neighbours(self, stream: Stream, incarnation: int, seq: int, now: float) -> None:
        """What consumers failed at side by side is one range, as old as the last of it."""
        for step in (-1, 1):
            at = seq + step
            while (hole := stream.holes.get((incarnation, at))) is not None:
                if hole.reason != "consumer_failed" or not hole.open:
                    break
                hole.lost_since = now
                at += step

    def _hand_out(self, admitted: Admitted, to: list[Consumer]) -> list[Consumer]:
        refused = []
        for consumer in to:
            try:
                consumer.consume(admitted)
            except Refused:
                refused.append(consumer)
        return refused

    def _fence(self, instance_id: str) -> None:
        for consumer in self.consumers:
            consumer.fence(instance_id)

    def _forget(self, instance_id: str) -> None:
        self._fence(instance_id)
        gone = self.streams.pop(instance_id, None)
        self.gaps_cleared += gone is not None and gone.gap_counted
        self.owed = {name: owed for name, owed in self.owed.items() if name[0] != instance_id}
        for consumer in self.consumers:
            consumer.settle(instance_id)

    def _settle(self, instance_id: str) -> None:
        stream = self.streams[instance_id]
        self.gaps += stream.gap_detected > stream.gap_counted
        self.gaps_cleared += stream.gap_detected < stream.gap_counted
        stream.gap_counted = stream.gap_detected
        if not stream.waits:
            for consumer in self.consumers:
                consumer.settle(instance_id)
