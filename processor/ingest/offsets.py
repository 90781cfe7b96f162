"""Where in the log an emitter's batches stand, sparsely, so that replay need not begin at the log's start.

Of each emitter and partition some `(incarnation, seq) -> offset` points are kept, evenly spread. When there
are too many, every second one goes and points are taken half as often from then on, so the index stays small
however long the stream is and still covers all of it. Points only ever rise, in stream order and offset
alike: late batches leave none.
"""

from __future__ import annotations

import sys
import threading
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from processor.ingest.source import Position

MAX_POINTS = 1024
"""Points kept of one emitter on one partition."""
MAX_STREAMS = 8192
"""Emitters kept, each on each of its partitions; past that, the one unheard for longest goes."""


class _Points:
    """Points in rising order, as columns."""

    __slots__ = ("incarnations", "offsets", "seqs", "skipped", "stride")

    def __init__(self) -> None:
        self.incarnations, self.seqs, self.offsets = array("q"), array("q"), array("q")
        self.stride = 1
        self.skipped = 0

    def add(self, incarnation: int, seq: int, offset: int) -> None:
        if self.seqs:
            if (incarnation, seq) <= (self.incarnations[-1], self.seqs[-1]) or offset <= self.offsets[-1]:
                return
            self.skipped += 1
            if self.skipped < self.stride:
                return
        self.skipped = 0
        self.incarnations.append(incarnation)
        self.seqs.append(seq)
        self.offsets.append(offset)
        if len(self.seqs) > MAX_POINTS:
            self.incarnations, self.seqs, self.offsets = (
                self.incarnations[::2],
                self.seqs[::2],
                self.offsets[::2],
            )
            self.stride *= 2

    def before(self, incarnation: int, seq: int) -> int | None:
        index = bisect_left(
            range(len(self.seqs)), (incarnation, seq), key=lambda i: (self.incarnations[i], self.seqs[i])
        )
        return self.offsets[index - 1] if index else None

    def capture(self) -> dict[str, Any]:
        return {
            "stride": self.stride,
            "skipped": self.skipped,
            "incarnations": _encoded(self.incarnations),
            "seqs": _encoded(self.seqs),
            "offsets": _encoded(self.offsets),
        }

    @classmethod
    def restored(cls, data: Mapping[str, Any]) -> _Points:
        points = cls()
        points.stride, points.skipped = int(data["stride"]), int(data["skipped"])
        points.incarnations, points.seqs, points.offsets = (
            _decoded(data[name]) for name in ("incarnations", "seqs", "offsets")
        )
        if not len(points.incarnations) == len(points.seqs) == len(points.offsets):
            raise ValueError("the columns of an offset index must be equally long")
        return points


def _encoded(column: array[int]) -> str:
    """A column as base64 of little-endian 64-bit integers: a few microseconds, where a list takes many."""
    little = column if sys.byteorder == "little" else _swapped(column)
    return b64encode(little.tobytes()).decode()


def _decoded(text: str) -> array[int]:
    column = array("q", b64decode(text, validate=True))
    return column if sys.byteorder == "little" else _swapped(column)


def _swapped(column: array[int]) -> array[int]:
    swapped = array("q", column)
    swapped.byteswap()
    return swapped


class OffsetIndex:
    """The points of all emitters. May be used from any thread."""

    def __init__(self) -> None:
        self._points: dict[tuple[str, int], _Points] = {}
        self._lock = threading.Lock()

    def note(self, instance_id: str, incarnation: int, seq: int, position: Position) -> None:
        """A batch was read at `position`."""
        stream = (instance_id, position.partition)
        with self._lock:
            # Put in again, so that the dict's order is that of last use.
            points = self._points.pop(stream, None) or _Points()
            self._points[stream] = points
            points.add(incarnation, seq, position.offset)
            if len(self._points) > MAX_STREAMS:
                del self._points[next(iter(self._points))]

    def before(self, instance_id: str, incarnation: int, seq: int, partition: int) -> int | None:
        """The newest offset known to hold a batch from before that one; None if none is known."""
        with self._lock:
            points = self._points.get((instance_id, partition))
            return None if points is None else points.before(incarnation, seq)

    def first(self, instance_id: str, partition: int) -> tuple[int, int] | None:
        """`(incarnation, seq)` of the first batch read of an emitter on a partition, None if none was."""
        with self._lock:
            points = self._points.get((instance_id, partition))
            return None if points is None or not points.seqs else (points.incarnations[0], points.seqs[0])

    def capture(self) -> list[dict[str, Any]]:
        """All points as plain data that JSON holds, the emitter unheard for longest first."""
        with self._lock:
            return [
                {"instance_id": instance_id, "partition": partition, **points.capture()}
                for (instance_id, partition), points in self._points.items()
            ]

    def restore(self, data: Iterable[Mapping[str, Any]]) -> None:
        """Take over what `capture` gave.

        Raises:
            KeyError, TypeError, ValueError: it is no such capture.
        """
        points = {(str(d["instance_id"]), int(d["partition"])): _Points.restored(d) for d in data}
        with self._lock:
            self._points = points
