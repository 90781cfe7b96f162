"""What the gate answers: the result of a batch, sums of results, totals since the start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class IngestResult(StrEnum):
    """What became of one batch."""

    ADMITTED = "admitted"
    REPAIRED = "repaired"
    DUPLICATE = "duplicate"
    STALE = "stale"


@dataclass(slots=True)
class IngestSummary:
    """What became of several batches. A repaired batch counts as applied."""

    applied: int = 0
    duplicates: int = 0
    stale: int = 0


@dataclass(frozen=True, slots=True)
class GateCounters:
    """Totals since the start.

    Attributes:
        gaps: how often a stream's `gap_detected` turned true.
        gaps_cleared: how often one turned false, streams that were forgotten included.
        batches: offered, by result.
        entries: of applied batches, by event type.
    """

    gaps: int
    gaps_cleared: int
    fences: int
    batches: dict[str, int]
    entries: dict[str, int]


class UnknownStream(LookupError):
    """No emitter of that id has been heard since it was last forgotten."""
