"""The life cycle of a range, and the set of ranges against a plain model of single sequence numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.ingest import ranges
from processor.ingest.ranges import (
    TRANSITIONS,
    LossReason,
    RangeSet,
    RangeState,
    SeqRange,
)

NO_LOG = LossReason.NO_LOG


def spans(held: RangeSet) -> list[tuple[int, int | None, str]]:
    return [(one.first, one.last, one.state.value) for one in held]


def test_repaired_and_accepted_are_ends() -> None:
    assert not {RangeState.REPAIRED, RangeState.ACCEPTED} & {state for state, _ in TRANSITIONS}


@pytest.mark.parametrize(
    ("seq", "left"),
    [
        (5, [(6, 9, "missing")]),
        (9, [(5, 8, "missing")]),
        (7, [(5, 6, "missing"), (8, 9, "missing")]),
    ],
)
def test_a_batch_that_arrives_shrinks_or_splits_its_range(seq: int, left: list[tuple[int, int, str]]) -> None:
    held = RangeSet([SeqRange(1, 1, 5, 9)])
    assert held.repair(1, seq) == SeqRange(1, 1, 5, 9)
    assert spans(held) == left


def test_a_closed_range_takes_no_batch_but_can_be_accepted() -> None:
    held = RangeSet([SeqRange(1, 1, 5, 9, RangeState.LOST, NO_LOG, since=10.0)])
    held.expire(before=10.0, now=20.0)
    assert held.open == 1
    held.expire(before=10.5, now=20.0)
    assert (held.open, spans(held)) == (0, [(5, 9, "closed")])
    assert held.repair(1, 6) is None
    held.accept(1, 1, None, closed=False)
    assert len(held) == 1
    held.accept(1, 6, 7, closed=True)
    assert spans(held) == [(5, 5, "closed"), (8, 9, "closed")]


def test_a_verdict_can_hit_a_part_of_what_is_missing() -> None:
    held = RangeSet([SeqRange(1, 1, 1, 9), SeqRange(2, 2, 1, 3)])
    held.lose(1, 4, 6, LossReason.BEFORE_LOG, now=5.0)
    assert spans(held) == [(1, 3, "missing"), (4, 6, "lost"), (7, 9, "missing"), (1, 3, "missing")]
    assert (held.open, held.missing) == (4, 3)


def test_what_is_lost_again_and_again_side_by_side_becomes_one_range() -> None:
    held = RangeSet()
    for seq in (3, 5, 4):
        held.add(SeqRange(1, 1, seq, seq, RangeState.LOST, NO_LOG, since=float(seq)))
    assert [(one.first, one.last, one.since) for one in held] == [(3, 5, 5.0)]


def test_a_tail_gets_its_end_and_an_empty_one_goes_without_trace() -> None:
    tail = SeqRange(3, 1, 8, None, RangeState.LOST, LossReason.BEFORE_LOG)
    held = RangeSet([tail])
    assert (held.tail(3), held.tail(2)) == (True, False)
    assert tail.batches == 0
    held.end_tail(3, 10)
    assert spans(held) == [(8, 10, "lost")]
    held = RangeSet([tail])
    held.end_tail(3, 7)
    assert len(held) == held.open == 0


def test_what_is_lost_before_a_tail_is_counted_though_the_tail_is_not() -> None:
    before = LossReason.BEFORE_LOG
    held = RangeSet([SeqRange(3, 1, 7, 7, RangeState.LOST, before)])
    held.add(SeqRange(3, 1, 8, None, RangeState.LOST, before))
    assert [one.batches for one in held] == [1, 0]
    held.end_tail(3, 9)
    assert [(one.first, one.last) for one in held] == [(7, 7), (8, 9)]


def test_a_late_batch_repairs_a_tail_whose_end_is_not_known() -> None:
    held = RangeSet([SeqRange(3, 1, 8, None, RangeState.LOST, LossReason.BEFORE_LOG)])
    assert held.repair(3, 10) is not None
    assert spans(held) == [(8, 9, "lost"), (11, None, "lost")]


def test_past_the_limit_the_oldest_are_closed_and_merged_and_no_batch_is_forgotten() -> None:
    held = RangeSet()
    for i in range(ranges.MAX_RANGES + 10):
        held.add(SeqRange(1, 1, 3 * i + 1, 3 * i + 2))
    assert len(held) == ranges.MAX_RANGES
    oldest = next(iter(held))
    assert (oldest.state, oldest.reason) == (RangeState.CLOSED, LossReason.TOO_MANY_RANGES)
    assert (oldest.first, oldest.last) == (1, 3 * 10 + 2)
    assert sum(one.batches for one in held) == 2 * (ranges.MAX_RANGES + 10)
    assert held.open == ranges.MAX_RANGES - 1


def test_merging_ranges_of_two_incarnations_keeps_the_count() -> None:
    held = RangeSet()
    for i in range(ranges.MAX_RANGES + 1):
        held.add(SeqRange(i, i, 1, 2))
    assert len(held) == ranges.MAX_RANGES
    assert sum(one.batches for one in held) == 2 * (ranges.MAX_RANGES + 1)


def test_splitting_past_the_limit_merges_as_well() -> None:
    held = RangeSet([SeqRange(1, 1, 10 * i + 1, 10 * i + 9) for i in range(ranges.MAX_RANGES)])
    assert held.repair(1, 10 * (ranges.MAX_RANGES - 1) + 5) is not None
    assert len(held) == ranges.MAX_RANGES


@pytest.mark.parametrize(
    ("held", "flag"),
    [
        ([], False),
        ([SeqRange(5, 1, 1, 2)], True),
        ([SeqRange(5, 1, 1, 2, RangeState.CLOSED, NO_LOG)], True),
        ([SeqRange(4, 1, 1, 2)], True),
        ([SeqRange(4, 1, 1, 2, RangeState.LOST, NO_LOG)], False),
        ([SeqRange(4, 1, 1, 2, RangeState.CLOSED, NO_LOG)], False),
    ],
)
def test_a_gap_is_any_range_of_the_present_incarnation_or_a_missing_one_of_an_older(
    held: list[SeqRange], flag: bool
) -> None:
    assert RangeSet(held).flags(5) is flag


operations = st.lists(
    st.tuples(st.sampled_from(["repair", "lose", "accept", "expire"]), st.integers(1, 40), st.integers(0, 6)),
    max_size=40,
)


@given(st.sets(st.integers(1, 40)), operations)
def test_ranges_are_what_single_numbers_would_be(holes: set[int], steps: list[tuple[str, int, int]]) -> None:
    held = RangeSet()
    model = dict.fromkeys(sorted(holes), RangeState.MISSING)
    for seq in sorted(holes):
        held.add(SeqRange(1, 1, seq, seq))
    for step, first, width in steps:
        span = [seq for seq in model if first <= seq <= first + width]
        if step == "repair":
            open_state = model.get(first) in ranges.OPEN_STATES
            assert (held.repair(1, first) is not None) is open_state
            if open_state:
                del model[first]
        elif step == "lose":
            held.lose(1, first, first + width, NO_LOG, now=1.0)
            model.update({seq: RangeState.LOST for seq in span if model[seq] is RangeState.MISSING})
        elif step == "accept":
            held.accept(None, first, first + width, closed=True)
            for seq in span:
                del model[seq]
        else:
            held.expire(before=2.0, now=3.0)
            model.update({seq: RangeState.CLOSED for seq in model if model[seq] is RangeState.LOST})
        single = {
            seq: one.state for one in held if one.last is not None for seq in range(one.first, one.last + 1)
        }
        assert single == model
        assert held.open == sum(one.is_open for one in held)
        assert held.missing == sum(one.state is RangeState.MISSING for one in held)


def test_a_list_that_was_handed_out_stays_what_it_was() -> None:
    held = RangeSet([SeqRange(1, 1, 5, 9)])
    seen = list(held)
    held.repair(1, 7)
    assert seen == [SeqRange(1, 1, 5, 9)]
