"""One emitter's cursor: what it remembers of its batches and incarnations, and how it shows."""

from __future__ import annotations

import pytest

from processor.ingest import stream
from processor.ingest.ranges import LossReason, RangeSet, RangeState, SeqRange
from processor.ingest.source import Position
from processor.ingest.stream import REMEMBERED, STALE_RUN, Cursor, LostRange, Reapplication
from producer.events import EventType
from tests.processor.ingest.recorder import batch


@pytest.fixture
def cursor() -> Cursor:
    return Cursor("server-1", incarnation=7, epoch=3)


def test_a_batch_said_again_in_the_same_words_is_no_contradiction(cursor: Cursor) -> None:
    cursor.note(batch(5, ts=2.0))
    assert not cursor.contradicts(batch(5, ts=2.0))
    assert cursor.contradicts(batch(5, ts=3.0))
    assert cursor.contradicts(batch(5, ts=2.0, entries=2))
    assert cursor.contradicts(batch(5, ts=2.0, event_type=EventType.DELETE))


def test_only_the_last_batches_are_remembered_and_nothing_is_said_of_others(cursor: Cursor) -> None:
    for seq in range(1, REMEMBERED + 2):
        cursor.note(batch(seq, ts=2.0))
    assert not cursor.contradicts(batch(1, ts=9.0)), "forgotten"
    assert cursor.contradicts(batch(2, ts=9.0)), "the oldest that is remembered"
    assert not cursor.contradicts(batch(REMEMBERED + 2, ts=9.0)), "never heard"


def test_a_late_batch_does_not_push_out_a_newer_one(cursor: Cursor) -> None:
    cursor.note(batch(REMEMBERED + 1, ts=2.0))
    cursor.note(batch(1, ts=1.0))
    assert cursor.contradicts(batch(REMEMBERED + 1, ts=9.0))


def test_the_latest_event_time_does_not_fall(cursor: Cursor) -> None:
    cursor.note(batch(1, ts=9.0))
    cursor.note(batch(2, ts=4.0))
    assert cursor.status().last_event_ts == 9.0


def test_a_run_of_stale_batches_is_a_conflict_until_one_of_its_own_comes(cursor: Cursor) -> None:
    cursor.stale_run = STALE_RUN - 1
    assert not cursor.in_conflict()
    cursor.stale_run += 1
    assert cursor.in_conflict()
    cursor.note(batch(1))
    assert not cursor.in_conflict()


def test_a_proven_conflict_outlasts_batches_but_not_the_incarnation(cursor: Cursor) -> None:
    cursor.conflict = True
    cursor.note(batch(1))
    assert cursor.in_conflict()
    cursor.renew(8, 4)
    assert not cursor.in_conflict()


def test_a_new_incarnation_begins_with_nothing_but_the_ranges_and_places_of_the_old(cursor: Cursor) -> None:
    cursor.ranges.add(SeqRange(7, 3, 1, 2))
    cursor.heard(Position(1, 40))
    cursor.note(batch(3, ts=9.0))
    cursor.renew(8, 4)
    assert (cursor.incarnation, cursor.epoch, cursor.last_seq, cursor.last_event_ts) == (8, 4, 0, 0.0)
    assert not cursor.contradicts(batch(3, ts=1.0))
    assert cursor.status().missing == [(1, 2)]
    assert cursor.positions == {1: 40}


def test_epochs_of_past_incarnations_are_known_as_far_back_as_ranges_go(cursor: Cursor) -> None:
    cursor.ranges.add(SeqRange(7, 3, 1, 2))
    cursor.renew(8, 4)
    cursor.renew(9, 5)
    assert [cursor.epoch_of(incarnation) for incarnation in (6, 7, 8, 9)] == [None, 3, 4, 5]
    cursor.ranges.accept(7, 1, None, closed=True)
    cursor.ranges.add(SeqRange(9, 5, 1, 1))
    cursor.renew(10, 6)
    assert [cursor.epoch_of(incarnation) for incarnation in (7, 8, 9, 10)] == [None, None, 5, 6]
    cursor.ranges.accept(None, 1, None, closed=True)
    cursor.renew(11, 7)
    assert cursor.past == {}


def test_only_so_many_past_incarnations_are_known(cursor: Cursor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_PAST", 2)
    cursor.ranges.add(SeqRange(7, 3, 1, 2))
    for incarnation in (8, 9, 10):
        cursor.renew(incarnation, incarnation - 4)
    assert [cursor.epoch_of(incarnation) for incarnation in (7, 8, 9, 10)] == [None, 4, 5, 6]


def test_a_stream_waits_while_a_range_is_open_or_it_is_put_through_again(cursor: Cursor) -> None:
    assert not cursor.waits
    cursor.ranges.add(SeqRange(7, 3, 1, 2, RangeState.CLOSED, LossReason.NO_LOG))
    assert not cursor.waits
    cursor.reapply = Reapplication(7, 1)
    assert cursor.waits
    cursor.reapply = None
    cursor.ranges.add(SeqRange(7, 3, 5, 5))
    assert cursor.waits


@pytest.mark.parametrize(
    ("incarnation", "seq", "covered"),
    [(6, 99, False), (7, 3, False), (7, 4, True), (7, 5, True), (8, 1, True)],
)
def test_what_is_put_through_again_begins_at_a_place_and_goes_on(
    incarnation: int, seq: int, covered: bool
) -> None:
    assert Reapplication(7, 4).covers(incarnation, seq) is covered


def test_the_place_shown_is_that_of_the_latest_record_and_goes_with_the_log(cursor: Cursor) -> None:
    cursor.heard(Position(1, 40))
    cursor.heard(Position(0, 7))
    cursor.heard(None)
    assert (cursor.status().partition, cursor.status().offset) == (0, 7)
    assert cursor.positions == {1: 40, 0: 7}
    cursor.leave_log()
    assert (cursor.status().partition, cursor.status().offset) == (None, None)
    assert cursor.positions == {}


def test_batches_held_for_a_consumer_show_as_missing_with_their_neighbours_of_one_incarnation(
    cursor: Cursor,
) -> None:
    failed = LossReason.CONSUMER_FAILED
    cursor.ranges = RangeSet(
        [
            SeqRange(6, 2, 1, 4),
            SeqRange(7, 3, 5, 6),
            SeqRange(7, 3, 7, 7, RangeState.MISSING, failed),
            SeqRange(7, 3, 9, 9, RangeState.LOST, failed),
        ]
    )
    status = cursor.status()
    assert status.missing == [(1, 4), (5, 7)]
    assert status.lost == [LostRange(9, 9, 7, failed)]
    assert (status.missing_batches, status.lost_batches, status.gap_detected) == (7, 1, True)
