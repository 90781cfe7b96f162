"""How far the partitions of a topic have been read, and what follows for lag and watermark.

The reading thread writes, others look; every field is replaced as a whole, so a look without a lock is a
look at a moment ago.
"""

from __future__ import annotations

from dataclasses import dataclass

from processor.ingest.source import PartitionStatus


@dataclass(slots=True)
class PartitionProgress:
    """One partition.

    Attributes:
        position: the next offset to read.
        end: the log's end as last heard of, None while unknown.
        read_time: the timestamp of the last record read in seconds, 0 before the first.
    """

    partition: int
    position: int
    end: int | None = None
    read_time: float = 0.0

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
        if self.lag == 0:
            return 0.0
        if self.lag is None or self.read_time == 0.0:
            return None
        return max(0.0, now - self.read_time)

    def watermark(self, now: float, connected: bool) -> float:
        """The time up to which it has been read: now at its end, provided that the end is still known."""
        return now if self.lag == 0 and connected else self.read_time


def lag_seconds(partitions: list[PartitionProgress], now: float) -> float | None:
    """The greatest lag, None if that of any is unknown or there are none."""
    lags = [partition.lag_seconds(now) for partition in partitions]
    known = [lag for lag in lags if lag is not None]
    return max(known) if known and len(known) == len(lags) else None


def watermark(partitions: list[PartitionProgress], now: float, connected: bool) -> float:
    """The least watermark, 0 if there are none."""
    return min((partition.watermark(now, connected) for partition in partitions), default=0.0)
