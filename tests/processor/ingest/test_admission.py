"""The gate's table: how a batch stands to a cursor, row by row of the design."""

from __future__ import annotations

import pytest

from processor.ingest.admission import ADMISSION, Standing, standing_of
from processor.ingest.backlog import ROOM, Backlog, Elder
from processor.ingest.outcomes import IngestResult
from processor.ingest.ranges import LossReason, RangeSet, RangeState, SeqRange
from processor.ingest.source import Horizon, Position
from processor.ingest.stream import Cursor
from tests.processor.ingest.recorder import batch

LOST = (RangeState.LOST, LossReason.NO_LOG)


@pytest.fixture
def cursor() -> Cursor:
    """At 10 of incarnation 5, with ranges in any state."""
    ranges = [
        SeqRange(4, 1, 7, 8),
        SeqRange(4, 1, 9, None, *LOST),
        SeqRange(5, 2, 2, 3),
        SeqRange(5, 2, 5, 5, *LOST),
        SeqRange(5, 2, 7, 7, RangeState.CLOSED, LossReason.NO_LOG),
    ]
    return Cursor("server-1", 5, 2, last_seq=10, ranges=RangeSet(ranges))


@pytest.mark.parametrize(
    ("incarnation", "seq", "standing"),
    [
        (6, 1, Standing.NEWER),
        (6, 11, Standing.NEWER),
        (5, 11, Standing.NEXT),
        (5, 12, Standing.BEYOND),
        (5, 10, Standing.KNOWN),
        (5, 4, Standing.KNOWN),
        (5, 2, Standing.LACKING),
        (5, 5, Standing.LACKING),
        (5, 7, Standing.KNOWN),
        (4, 6, Standing.OLDER),
        (4, 8, Standing.LACKING_OLDER),
        (4, 99, Standing.LACKING_OLDER),
        (3, 11, Standing.OLDER),
    ],
)
def test_a_batch_stands_by_its_incarnation_its_number_and_the_open_ranges(
    cursor: Cursor, incarnation: int, seq: int, standing: Standing
) -> None:
    before = list(cursor.ranges)
    assert standing_of(batch(seq, incarnation), cursor, False) is standing
    assert list(cursor.ranges) == before, "deciding changes nothing"


@pytest.mark.parametrize(
    ("incarnation", "seq", "position", "standing"),
    [
        (4, 3, Position(0, 10), Standing.KNOWN_OLDER),
        (4, 4, Position(0, 10), Standing.LATE_OLDER),
        (4, 6, Position(0, 19), Standing.LATE_OLDER),
        (3, 1, Position(0, 10), Standing.LATE_OLDER),
        (4, 4, Position(0, 9), Standing.OLDER),
        (4, 4, Position(0, 20), Standing.OLDER),
        (4, 4, Position(1, 10), Standing.OLDER),
        (4, 4, None, Standing.OLDER),
        (5, 10, Position(0, 10), Standing.KNOWN),
    ],
)
def test_an_older_incarnation_counts_where_it_was_unread_when_the_present_one_opened(
    incarnation: int, seq: int, position: Position | None, standing: Standing
) -> None:
    backlog = Backlog(1, 0.0, Horizon({0: 10, 1: 10}, {0: 20, 1: 20}), floor=1, elders={4: Elder(100, 3)})
    cursor = Cursor("server-1", 5, 1 + ROOM, last_seq=10, backlog=backlog)
    assert standing_of(batch(seq, incarnation), cursor, False, position) is standing


def test_without_a_cursor_any_batch_is_the_first() -> None:
    assert standing_of(batch(7, 3), None, False) is Standing.FIRST


def test_what_lies_before_a_departure_counts_for_nothing_else(cursor: Cursor) -> None:
    for known in (cursor, None):
        assert standing_of(batch(11, 5), known, True) is Standing.DEPARTED


def test_the_table_has_every_standing_and_no_row_gives_what_another_should() -> None:
    assert set(ADMISSION) == set(Standing)
    by_result = {result: {s for s in Standing if ADMISSION[s] is result} for result in IngestResult}
    assert by_result == {
        IngestResult.ADMITTED: {Standing.FIRST, Standing.NEWER, Standing.NEXT, Standing.BEYOND},
        IngestResult.REPAIRED: {Standing.LACKING, Standing.LACKING_OLDER, Standing.LATE_OLDER},
        IngestResult.DUPLICATE: {Standing.KNOWN, Standing.KNOWN_OLDER},
        IngestResult.STALE: {Standing.OLDER, Standing.DEPARTED},
    }
