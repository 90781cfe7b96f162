"""The gate as the design words it: one sequence number at a time, nothing merged, nothing fast.

A stream remembers every hole, that is every sequence number it has not seen below one it has, and every
batch it has applied. Ranges are what consecutive holes of one kind look like from outside. Consumers are told
in the order that the design gives: fence, then the batch, then that the stream has no open hole any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from producer.events import CacheEventBatch

Position = tuple[int, int]
"""(partition, offset) of a record."""
STALE_RUN = 3
"""So many stale batches in a row mean that whoever sends them is heard only as stale."""


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


class Consumer(Protocol):
    def consume(self, admitted: Admitted) -> None: ...
    def fence(self, instance_id: str) -> None: ...
    def settle(self, instance_id: str) -> None: ...
    def expire(self, before: float) -> None: ...


@dataclass
class Hole:
    """A sequence number that was skipped: lost if it has a reason, else missing; not open once given up."""

    incarnation: int
    seq: int
    epoch: int
    reason: str | None
    lost_since: float
    open: bool = True


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
    applied: dict[tuple[int, int], tuple[float, str, int]] = field(default_factory=dict)

    @property
    def lacking(self) -> list[Hole]:
        return [*self.holes.values(), *self.tails.values()]

    @property
    def has_open_range(self) -> bool:
        return any(hole.open for hole in self.lacking)

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

    def take(self, incarnation: int, seq: int) -> Hole | None:
        """Fill the open hole of that number, if there is one."""
        tail = self.tails.get(incarnation)
        if tail is not None and tail.open and seq >= tail.seq:
            self.cut(incarnation, seq + 1)
        hole = self.holes.get((incarnation, seq))
        return self.holes.pop((incarnation, seq)) if hole is not None and hole.open else None


def describe(batch: CacheEventBatch) -> tuple[float, str, int]:
    """What a second delivery of the same batch must agree in."""
    return batch.ts, batch.event_type, len(batch.entries)


class Gate:
    def __init__(self, consumer: Consumer, repair_window: float = 3600.0, seekable: bool = True) -> None:
        self.consumer = consumer
        self.seekable = seekable
        self.repair_window = repair_window
        self.streams: dict[str, Stream] = {}
        self.epochs: dict[str, int] = {}
        self.marks: dict[str, dict[int, int]] = {}

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
        if position is not None and position[1] < self.marks.get(instance_id, {}).get(position[0], 0):
            return Result.STALE

        stream = self.streams.get(instance_id)
        if stream is None:
            stream = self.streams[instance_id] = Stream(batch.incarnation, self._next_epoch(instance_id))
        elif batch.incarnation > stream.incarnation:
            self.consumer.fence(instance_id)
            stream.incarnation, stream.epoch = batch.incarnation, self._next_epoch(instance_id)
            stream.last_seq = stream.stale_run = 0
            stream.last_event_time, stream.contradicted = 0.0, False

        is_next = batch.incarnation == stream.incarnation and batch.seq > stream.last_seq
        hole = None if is_next else stream.take(*name)
        if is_next:
            self._expose(stream, batch, now)
            stream.last_seq = batch.seq
            result, epoch = Result.ADMITTED, stream.epoch
        elif hole is not None:
            result, epoch = Result.REPAIRED, hole.epoch
        elif batch.incarnation < stream.incarnation:
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
            stream.applied[name] = describe(batch)
            stream.stale_run = 0
            stream.last_event_time = max(stream.last_event_time, time)
        self.consumer.consume(
            Admitted(
                batch=batch,
                event_time=time,
                generation=generation,
                epoch=epoch,
                repaired=result is Result.REPAIRED,
                l1_void=batch.incarnation < stream.incarnation,
                keep_tombstones=stream.has_open_range,
                keep_contents=result is Result.REPAIRED or self.any_open_range,
            )
        )
        self._settle(instance_id)
        return result

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
            if (tail.open or named) and incarnation in (None, number):
                if last is not None:
                    stream.cut(number, last + 1)
                else:
                    stream.cut(number, 1 if first is None else first)
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
        for instance_id, stream in self.streams.items():
            for hole in stream.lacking:
                if hole.reason is not None and now - hole.lost_since > self.repair_window:
                    hole.open = False
            self._settle(instance_id)
        if not self.any_open_range:
            self.consumer.expire(watermark - clock_skew)

    def lose_tails(self, partition: int, now: float) -> None:
        """The log was cut where it is read: whoever spoke there may have lost what it says next."""
        for stream in self.streams.values():
            if partition in stream.heard_at and stream.incarnation not in stream.tails:
                stream.tails[stream.incarnation] = Hole(
                    stream.incarnation, stream.last_seq + 1, stream.epoch, "before_log", now
                )

    @property
    def any_open_range(self) -> bool:
        return any(stream.has_open_range for stream in self.streams.values())

    def _expose(self, stream: Stream, batch: CacheEventBatch, now: float) -> None:
        """What lies between the last batch and this one is missing, or was lost with the tail of the log."""
        if stream.incarnation in stream.tails:
            stream.cut(stream.incarnation, batch.seq)
            del stream.tails[stream.incarnation]
            return
        reason = None if self.seekable else "no_log"
        for seq in range(stream.last_seq + 1, batch.seq):
            stream.holes[batch.incarnation, seq] = Hole(batch.incarnation, seq, stream.epoch, reason, now)

    def _next_epoch(self, instance_id: str) -> int:
        self.epochs[instance_id] = self.epochs.get(instance_id, 0) + 1
        return self.epochs[instance_id]

    def _forget(self, instance_id: str) -> None:
        self.consumer.fence(instance_id)
        self.streams.pop(instance_id, None)
        self.consumer.settle(instance_id)

    def _settle(self, instance_id: str) -> None:
        if not self.streams[instance_id].has_open_range:
            self.consumer.settle(instance_id)
