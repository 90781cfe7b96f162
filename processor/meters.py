"""What is measured as it happens: ages of events, times and yields of lookups."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from processor.batch import Admission
from processor.state.blend import Match

AGE_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
LOOKUP_BUCKETS: Final = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
)


class Histogram:
    """Counts of values by upper bound; safe to feed from several threads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count one value."""
        index = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[index] += 1
            self._sum += value

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by bound, as the text format has them, and the sum of all values."""
        with self._lock:
            counts, total = self._counts.copy(), self._sum
        bounds = [*(repr(bound) for bound in self._bounds), "+Inf"]
        running = 0
        cumulative = []
        for bound, count in zip(bounds, counts, strict=True):
            running += count
            cumulative.append((bound, float(running)))
        return cumulative, total


class Meter:
    """A consumer of the stream that measures it: how old its events are when applied, how long its contents.

    Attributes:
        chunk_size: the fleet's.
        ages: from the emitter's clock to the batch applied, in seconds.
        fitting: chunks whose content has the fleet's chunk size.
        unfitting: chunks whose content has another length, and is not indexed.
        unfitting_length: the length that one of these had last.
        tokens_dropped: chunks whose content was left out by the decoder.
    """

    name = "meter"

    def __init__(self, chunk_size: int, clock: Callable[[], float] = time.time) -> None:
        self.ages = Histogram(AGE_BUCKETS)
        self.fitting = self.unfitting = self.unfitting_length = self.tokens_dropped = 0
        self.chunk_size = chunk_size
        self._clock = clock

    def consume(self, admission: Admission) -> None:
        """Measure one batch; its age only if its emitter gave the time."""
        batch = admission.batch
        if batch.ts > 0:
            self.ages.observe(max(0.0, self._clock() - batch.ts))
        columns = batch.columns
        self.tokens_dropped += columns.tokens_dropped
        if len(columns.tokens):
            lengths = np.diff(columns.token_starts)
            fits = lengths == self.chunk_size
            unfitting = lengths[~fits & (lengths > 0)]
            self.fitting += int(np.count_nonzero(fits))
            if len(unfitting):
                self.unfitting += len(unfitting)
                self.unfitting_length = int(unfitting[-1])

    def chunk_size_in_doubt(self) -> bool:
        """Whether more contents had another length than the fleet's chunk size than had it."""
        return self.unfitting > self.fitting

    def fence(self, instance_id: str) -> None:
        """Nothing to drop."""

    def settle(self, instance_id: str) -> None:
        """Nothing to drop."""

    def expire(self, before: float) -> None:
        """Nothing to drop."""


@dataclass(slots=True)
class BlendMeter:
    """What blend lookups found, and how long they took."""

    seconds: Histogram = field(default_factory=lambda: Histogram(LOOKUP_BUCKETS))
    matches: int = 0
    hit_tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, seconds: float, matches: Sequence[Match], chunk_size: int) -> None:
        """Count one lookup."""
        self.seconds.observe(seconds)
        with self._lock:
            self.matches += len(matches)
            self.hit_tokens += _covered(matches, chunk_size)


def _covered(matches: Sequence[Match], chunk_size: int) -> int:
    """How many tokens of a query its matches cover; where they overlap, once."""
    covered = end = 0
    for match in matches:
        covered += match.cur_st + chunk_size - max(end, match.cur_st)
        end = match.cur_st + chunk_size
    return covered
