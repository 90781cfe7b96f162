"""What a source of events is: something that reads an emitter's batches and offers them to the gate.

A source owns transport and nothing else: where its reading stands, how far behind it is, what it could not
read. Which batch counts is the gate's business. Transport positions and the gate's cursors are two different
things: a position says what was read, a cursor what was admitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol


class Position(NamedTuple):
    """Where in the log a record stands."""

    partition: int
    offset: int


Mark = Mapping[int, int]
"""Ends of partitions at one instant: partition -> the offset that the next record was going to get."""


class LogEnds(NamedTuple):
    """Where the partitions of a log end.

    Attributes:
        exact: whether all of them are those of the moment of asking, and none as last heard of.
    """

    offsets: Mark
    exact: bool


@dataclass(frozen=True, slots=True)
class Horizon:
    """Up to where the log had been read when a gap showed; all that lies behind it is yet to be read live.

    Attributes:
        read: the next offset to read, by partition.
        ends: where each partition ended then or later, None while nobody has asked.
    """

    read: Mark
    ends: Mark | None = None

    def joined(self, other: Horizon | None) -> Horizon:
        """What holds for both."""
        if other is None:
            return self
        ends = None if self.ends is None or other.ends is None else _later(self.ends, other.ends)
        return Horizon(_later(self.read, other.read), ends)


def _later(one: Mark, other: Mark) -> Mark:
    return {p: max(one.get(p, 0), other.get(p, 0)) for p in {**one, **other}}


class ReplayCapability(StrEnum):
    """Whether a source can read again what it has read before."""

    NONE = "none"
    SEEKABLE = "seekable"


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How far one partition has been read.

    Attributes:
        position: the next offset to read.
        end: the log's end as last heard of, None while unknown.
        lag: records still to read, None while the end is unknown.
    """

    partition: int
    position: int
    end: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class ReplayTotals:
    """What replay does, and what it has done since the start.

    Attributes:
        states: streams by the state of their replay.
        scans: stretches of partitions that were read again.
        failures: such that have to be read once more.
        records: read again, by what became of them: `offered`, `skipped` (of other emitters) or
            `undecodable`.
    """

    states: Mapping[str, int]
    scans: int = 0
    failures: int = 0
    records: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What a source says of itself.

    Attributes:
        partitions: ascending; empty where a source has none, or has not found its topic yet.
        lag_seconds: how old the next unread record is, 0 at every partition's end, None while unknown.
        caught_up: every partition has been read to the end that was last heard of.
        error: why nothing can be read at present, None if all is well.
        undecodable: records counted and skipped since the start.
        dead_letters_lost: copies of such records that the topic for them did not take.
        replay: None where nothing can be read again.
        commits: times that positions were handed to the broker for lag tools, by result.
    """

    name: str
    capability: ReplayCapability
    partitions: list[PartitionStatus] = field(default_factory=list)
    lag_seconds: float | None = 0.0
    caught_up: bool = True
    error: str | None = None
    undecodable: int = 0
    dead_letters_lost: int = 0
    replay: ReplayTotals | None = None
    commits: Mapping[str, int] = field(default_factory=dict)


class EventSource(Protocol):
    """A source of events. A `SEEKABLE` one also offers `replay`."""

    def start(self) -> None:
        """Begin to read, if reading is the source's to begin; return at once."""

    def stop(self) -> None:
        """End reading; when this returns, nothing more is offered to the gate. May be called twice."""

    def status(self) -> SourceStatus:
        """The state of reading, without asking a broker."""

    def watermark(self) -> float:
        """The time in seconds up to which every partition has been read; 0 while unknown."""
