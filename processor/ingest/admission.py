"""The gate's decision: how a batch stands to its stream's cursor, and what becomes of it. Pure.

`ADMISSION` is the whole of it. What follows for the cursor and the consumers is the gate's to carry out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from processor.batch import EventBatch
from processor.ingest.outcomes import IngestResult
from processor.ingest.source import Position
from processor.ingest.stream import Cursor


class Standing(StrEnum):
    """How a batch stands to the cursor of its stream."""

    DEPARTED = "departed"
    """From before the mark of its instance's departure."""
    FIRST = "first"
    """Of a stream without a cursor."""
    NEWER = "newer"
    """Of a newer incarnation."""
    NEXT = "next"
    """The next in order."""
    BEYOND = "beyond"
    """Beyond the next."""
    LACKING = "lacking"
    """In an open range."""
    KNOWN = "known"
    """At or below the last one admitted, and in no open range."""
    LACKING_OLDER = "lacking_older"
    """Of an older incarnation, in an open range kept from it."""
    LATE_OLDER = "late_older"
    """Of an older incarnation, beyond what was seen, from what was unread when the present one opened."""
    KNOWN_OLDER = "known_older"
    """From there too, but seen, and in no open range."""
    OLDER = "older"
    """Of an older incarnation otherwise."""


ADMISSION: Mapping[Standing, IngestResult] = {
    Standing.DEPARTED: IngestResult.STALE,  # dropped
    Standing.FIRST: IngestResult.ADMITTED,  # a cursor that counts from 0; then as NEXT or BEYOND
    Standing.NEWER: IngestResult.ADMITTED,  # the instance is fenced; a fresh cursor; then the same
    Standing.NEXT: IngestResult.ADMITTED,  # applied
    Standing.BEYOND: IngestResult.ADMITTED,  # the hole becomes a missing range; applied all the same
    Standing.LACKING: IngestResult.REPAIRED,  # applied; the range shrinks
    Standing.KNOWN: IngestResult.DUPLICATE,  # dropped
    Standing.LACKING_OLDER: IngestResult.REPAIRED,  # its L2 half is applied
    # Its L2 half is applied; a hole before it becomes a missing range of that incarnation.
    Standing.LATE_OLDER: IngestResult.REPAIRED,
    Standing.KNOWN_OLDER: IngestResult.DUPLICATE,  # dropped
    Standing.OLDER: IngestResult.STALE,  # dropped
}


# Every batch comes by here, and to look up a member of an enum by its name costs 60 ns.
DEPARTED, FIRST, NEWER, NEXT, BEYOND, LACKING, KNOWN, LACKING_OLDER, LATE_OLDER, KNOWN_OLDER, OLDER = Standing


def standing_of(
    batch: EventBatch, cursor: Cursor | None, departed: bool, position: Position | None = None
) -> Standing:
    """How `batch` stands to the cursor of its stream, None if there is none."""
    if departed:
        return DEPARTED
    if cursor is None:
        return FIRST
    current = batch.incarnation == cursor.incarnation
    if current and batch.seq > cursor.last_seq:
        return NEXT if batch.seq == cursor.last_seq + 1 else BEYOND
    if batch.incarnation > cursor.incarnation:
        return NEWER
    if cursor.ranges.waits_for(batch.incarnation, batch.seq):
        return LACKING if current else LACKING_OLDER
    if current:
        return KNOWN
    if cursor.follows(batch.incarnation, position):
        return KNOWN_OLDER if cursor.has_seen(batch.incarnation, batch.seq) else LATE_OLDER
    return OLDER
