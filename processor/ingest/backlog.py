"""What was still unread when an incarnation opened, and the older incarnations that speak from there.

An emitter whose records came to lie on several partitions may be heard out of order: its new incarnation on
one of them, while what its older ones said waits on another. L2 outlives an incarnation, so that this counts,
and a stream follows its older incarnations for as long as live reading passes what lay before it.

Epochs must tell which incarnation came first, also where the newer was heard first. A cursor that opens with
something unread therefore leaves `ROOM` below its own epoch, and older ones get theirs from it as they turn
up, always between those of their neighbours: the first in the middle, so that others fit on either side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from processor.ingest.source import Horizon, Mark, Position

ROOM = 1 << 18
"""Epochs left free below an incarnation."""
MAX_STEP = 1 << 9
"""Epochs at most from one that turns up late to its neighbour, so that the next ones fit beyond it."""
MAX_EPOCH = 1 << 31
"""Stamps hold twice that; from here on no room is left."""
MAX_ELDERS = 1024
"""Older incarnations that are followed a stream."""

Place = tuple[int, int]
"""`(incarnation, seq)` of a batch."""


@dataclass(frozen=True, slots=True)
class Elder:
    """How far an older incarnation was read; `partition` is where it was heard late, None if it was not."""

    epoch: int
    last_seq: int
    partition: int | None = None


@dataclass(slots=True)
class Backlog:
    """What the other partitions still held when an incarnation opened.

    Attributes:
        partition: where the incarnation opened. There all that is older lies before it.
        since: when it opened, in seconds.
        horizon: how far the log had been read then, and where it ended.
        floor: epochs above it, up to the cursor's, are free for incarnations that turn up.
        elders: the older incarnations known so far.
        late: the earliest batch that turned up late, None while none has.
    """

    partition: int
    since: float
    horizon: Horizon
    floor: int
    elders: dict[int, Elder] = field(default_factory=dict)
    late: Place | None = None

    def holds(self, position: Position) -> bool:
        """Whether a record was unread when the incarnation opened, and may have been written before."""
        read, ends = self.horizon.read, self.horizon.ends
        partition, offset = position
        return (
            partition != self.partition
            and offset >= read.get(partition, 0)
            and (ends is None or offset < ends.get(partition, 0))
        )

    def passed(self, positions: Mark) -> bool:
        """Whether live reading has come to the end of it."""
        ends = self.horizon.ends
        return ends is not None and all(
            positions.get(partition, -1) >= end
            for partition, end in ends.items()
            if partition != self.partition
        )

    def note_ends(self, ends: Mark, asked: float) -> None:
        """Where the log ended at the time `asked`, or later."""
        if self.horizon.ends is None and self.since <= asked:
            self.horizon = replace(self.horizon, ends=dict(ends))

    def epoch_for(self, incarnation: int, top: int) -> int | None:
        """The epoch of an older incarnation, below `top`; None if there is no room for it."""
        known = self.elders.get(incarnation)
        if known is not None:
            return known.epoch
        below = [held.epoch for older, held in self.elders.items() if older < incarnation]
        above = [held.epoch for newer, held in self.elders.items() if newer > incarnation]
        low, high = max(below, default=self.floor), min(above, default=top)
        room = high - low
        if room < 2 or len(self.elders) >= MAX_ELDERS:
            return None
        if below:
            return low + max(1, min(room // 4, MAX_STEP))
        return high - max(1, min(room // 8, MAX_STEP)) if above else low + room // 2

    def add(self, incarnation: int, elder: Elder) -> None:
        """An incarnation has a successor; past `MAX_ELDERS` the oldest is followed no longer."""
        self.elders[incarnation] = elder
        if len(self.elders) > MAX_ELDERS:
            self.floor = self.elders.pop(min(self.elders)).epoch

    def hear(self, incarnation: int, seq: int, epoch: int, partition: int) -> int:
        """A batch beyond what was seen of an older incarnation turned up; return what was seen before."""
        known = self.elders.get(incarnation, Elder(epoch, 0))
        self.elders[incarnation] = Elder(epoch, seq, partition)
        self.late = (incarnation, seq) if self.late is None else min(self.late, (incarnation, seq))
        return known.last_seq

    def unfinished(self, partition: int | None = None) -> Mapping[int, Elder]:
        """The older incarnations that may have more to say where they were heard (None: on any)."""
        latest: dict[int, int] = {}
        for incarnation, elder in self.elders.items():
            if elder.partition is not None and partition in (None, elder.partition):
                latest[elder.partition] = max(incarnation, latest.get(elder.partition, incarnation))
        return {incarnation: self.elders[incarnation] for incarnation in latest.values()}


def next_epoch(latest: int, backlog: bool) -> int:
    """The epoch of a cursor that opens after one of the epoch `latest`."""
    return latest + (ROOM if backlog and latest < MAX_EPOCH else 1)
