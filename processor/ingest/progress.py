"""How far the partitions of a topic have been read, and what follows for lag and watermark.

Each partition is heard of by itself, since each may have another broker for its leader: that one answers says
nothing of what has come to the other.

The reading thread writes, others look; every field is replaced as a whole, so a look without a lock is a
look at a moment ago.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from processor.ingest.source import Mark, PartitionStatus

END_KNOWN_FOR = 10.0
"""Seconds for which an end counts as known after the partition's leader was heard: a silent one tells of no
other, nor does a reader that is stuck hear of it.
"""


@dataclass(slots=True)
class PartitionProgress:
    """One partition.

    Attributes:
        position: the next offset to read.
        end: the log's end as last heard of, None while unknown.
        read_time: the timestamp of the last record read in seconds, 0 before the first.
        heard: when the partition's leader was last known to answer, in seconds; 0 if that does not count.
        at_end: when reading was last known to be at the end, 0 if it never was.
    """

    partition: int
    position: int
    end: int | None = None
    read_time: float = 0.0
    heard: float = 0.0
    at_end: float = 0.0

    def see_end(self, end: int) -> None:
        """The partition ends at `end` or behind it, as it was told some time."""
        self.end = max(end, self.end or 0)

    def hear_end(self, end: int, when: float) -> None:
        """The partition's leader told that it ended at `end`, or behind it."""
        self.see_end(end)
        self.heard = when
        if self.end == self.position:
            self.at_end = when

    def is_heard(self, now: float) -> bool:
        """Whether what is known of the end still holds."""
        return now - self.heard <= END_KNOWN_FOR

    def caught_up(self, now: float) -> bool:
        """Whether it has been read to an end that still holds."""
        return self.lag == 0 and self.is_heard(now)

    @property
    def lag(self) -> int | None:
        """Records still to read, None while the end is unknown."""
        return None if self.end is None else max(0, self.end - self.position)

    def status(self) -> PartitionStatus:
        """The partition as operators see it."""
        end = None if self.end is None else max(self.end, self.position)
        return PartitionStatus(self.partition, self.position, end, self.lag)

    def lag_seconds(self, now: float) -> float | None:
        """How old the next record is at most; 0 at the end, None while that cannot be told."""
        if self.lag is None or not self.is_heard(now):
            return None
        if self.lag == 0:
            return 0.0
        # What comes next came later than that: the first record after an idle hour is not an hour old.
        return max(0.0, now - self.watermark) if self.watermark else None

    @property
    def watermark(self) -> float:
        """Up to when it has been read: to the last record, or to when that was known to be the last."""
        return max(self.read_time, self.at_end)


class LogProgress:
    """All partitions of one log.

    Args:
        positions: where reading goes on, by partition; it begins at the earliest record of any other.
        began: the offsets at which reading began, of those that were read from their earliest record on.

    Attributes:
        partitions: those being read.
    """

    def __init__(self, positions: Mark | None = None, began: Mark | None = None) -> None:
        self.partitions: dict[int, PartitionProgress] = {}
        self.began = dict(began or {})
        self._positions = dict(positions or {})

    def __iter__(self) -> Iterator[PartitionProgress]:
        """The partitions being read, ascending."""
        return iter([progress for _, progress in sorted(self.partitions.copy().items())])

    def positions(self) -> dict[int, int]:
        """The next offset to read of every partition, also of those whose reading has yet to go on."""
        return self._positions | {progress.partition: progress.position for progress in self}

    def begin(self, partition: int, low: int, high: int, now: float) -> None:
        """A partition that has records from `low` to `high` is being read, if it was not already."""
        if partition not in self.partitions:
            position = self._positions.get(partition)
            if position is None:
                position = self.began[partition] = low
            self.partitions[partition] = PartitionProgress(partition, position, high, heard=now)

    def jump(self, partition: int, low: int, high: int, now: float) -> None:
        """The log does not hold the position; reading goes on at the earliest record."""
        progress = self.partitions[partition]
        progress.position, progress.end, progress.heard, progress.at_end = low, high, now, 0.0
        self.began[partition] = low

    def lose_touch(self) -> None:
        """Nothing heard so far tells where partitions end now."""
        for progress in self:
            progress.heard = 0.0

    def caught_up(self, now: float) -> bool:
        """Every partition has been read to its end, and there is one."""
        return bool(self.partitions) and all(progress.caught_up(now) for progress in self)

    def lag_seconds(self, now: float) -> float | None:
        """The greatest lag, None if that of any is unknown or there are none."""
        lags = [progress.lag_seconds(now) for progress in self]
        known = [lag for lag in lags if lag is not None]
        return max(known) if known and len(known) == len(lags) else None

    def watermark(self) -> float:
        """The least watermark, 0 if there are none."""
        return min((progress.watermark for progress in self), default=0.0)
