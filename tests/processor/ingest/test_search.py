"""Where replay looks and why it gives up: pure functions, held against a log that is simulated here."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from processor.ingest.ranges import LossReason, SeqRange
from processor.ingest.search import (
    END,
    START,
    Hidden,
    Knowledge,
    Place,
    Search,
    Verdict,
    plan,
    searches_for,
    verdicts,
)
from processor.ingest.source import Horizon

NEVER, BEFORE, GARBLED = LossReason.NEVER_PRODUCED, LossReason.BEFORE_LOG, LossReason.UNDECODABLE
DEPARTED = LossReason.DEPARTED


def known(
    began: Mapping[int, int],
    before: Mapping[int, int] | None = None,
    first: Mapping[int, tuple[int, int]] | None = None,
    hides: frozenset[int] = frozenset(),
) -> Knowledge:
    return Knowledge(
        began,
        lambda instance_id, incarnation, seq, partition: (before or {}).get(partition),
        lambda instance_id, partition: (first or {}).get(partition),
        lambda instance_id, partition: partition in hides,
    )


def lacking(first: int, last: int | None, read: Mapping[int, int], incarnation: int = 1) -> SeqRange:
    return SeqRange(incarnation, 1, first, last, horizon=Horizon(read))


def as_shown(held: SeqRange) -> tuple[SeqRange, Mapping[int, int]]:
    assert held.horizon is not None
    return held, held.horizon.read


def look(
    held: SeqRange, heard: set[int], knowledge: Knowledge, *, thorough: bool = False, everywhere: bool = False
) -> tuple[list[tuple[int, int | None, int]], list[Hidden]]:
    searches, hidden = searches_for(
        "server-1", [as_shown(held)], heard, knowledge, thorough=thorough, everywhere=everywhere
    )
    return [(s.partition, s.start, s.until) for s in searches], hidden


def test_a_search_goes_from_the_newest_offset_known_to_lie_before_to_where_live_reading_stood() -> None:
    found, _ = look(lacking(5, 6, {0: 100}), {0}, known({0: 0}, {0: 40}, {0: (1, 1)}))
    assert found == [(0, 40, 100)]


def test_where_nothing_is_known_to_lie_before_it_begins_at_the_log_s_start() -> None:
    found, _ = look(lacking(5, 6, {0: 100}), {0}, known({}))
    assert found == [(0, None, 100)]


def test_what_an_emitter_said_before_it_departed_is_not_looked_at_and_hides_what_is_lacking() -> None:
    held, knowledge = lacking(1, 6, {0: 100}), known({0: 0}, first={0: (1, 1)})
    searches, hidden = searches_for("server-1", [as_shown(held)], {0}, knowledge, mark={0: 60, 1: 9})
    (search,) = searches
    assert (search.start, search.until, hidden) == (60, 100, [])
    assert [search.covers(offset) for offset in (59, 60)] == [False, True]
    search.saw(Place(1, 5), Place(1, 5))
    assert verdicts(held, search.hidden()) == [Verdict(1, 4, DEPARTED), Verdict(5, 6, NEVER)]


def test_where_all_of_a_stretch_lies_before_the_departure_nothing_is_searched() -> None:
    held, knowledge = lacking(1, 6, {0: 100}), known({0: 0}, first={0: (1, 1)})
    searches, hidden = searches_for("server-1", [as_shown(held)], {0}, knowledge, mark={0: 100})
    assert (searches, verdicts(held, hidden)) == ([], [Verdict(1, 6, DEPARTED)])


def test_a_departure_proves_nothing_where_the_emitter_was_never_heard_or_nothing_lacks_from_before() -> None:
    held = lacking(5, 6, {0: 100, 1: 50, 2: 30})
    knowledge = known({0: 0}, {0: 80}, {0: (1, 1)})
    searches, hidden = searches_for("server-1", [as_shown(held)], {0}, knowledge, mark={0: 60, 1: 40, 2: 30})
    assert [(s.start, s.until, s.hidden()) for s in searches] == [(80, 100, []), (40, 50, [])]
    assert hidden == []


def test_partitions_that_the_emitter_was_never_heard_on_are_left_out_if_they_were_read_from_their_start() -> (
    None
):
    held = lacking(5, 6, {0: 100, 1: 70, 2: 30})
    knowledge = known({0: 0, 1: 0}, {0: 40}, {0: (1, 1)})
    assert look(held, {0}, knowledge)[0] == [(0, 40, 100), (2, None, 30)]
    assert look(held, {0}, knowledge, everywhere=True)[0] == [(0, 40, 100), (1, None, 70), (2, None, 30)]


def test_every_partition_of_a_split_stream_is_searched() -> None:
    knowledge = known({0: 0, 1: 0}, {0: 40, 1: 7}, {0: (1, 1), 1: (1, 4)})
    assert look(lacking(5, 6, {0: 100, 1: 70}), {0, 1}, knowledge)[0] == [(0, 40, 100), (1, 7, 70)]


def test_before_an_emitter_s_first_record_there_is_nothing_to_search_unless_an_operator_asks() -> None:
    held = lacking(1, 6, {0: 100})
    assert look(held, {0}, known({0: 0}, first={0: (1, 7)})) == ([], [])
    assert look(held, {0}, known({0: 0}, first={0: (1, 7)}), thorough=True)[0] == [(0, None, 100)]
    # It was read from its start, which was not the start of all: what is lacking may have been before.
    assert look(held, {0}, known({0: 9}, first={0: (1, 7)})) == ([], [Hidden(START, Place(1, 7), BEFORE)])


def test_a_record_that_could_not_be_decoded_makes_its_partition_worth_a_search() -> None:
    held = lacking(1, 6, {0: 100})
    knowledge = known({0: 0}, first={0: (1, 7)}, hides=frozenset({0}))
    assert look(held, {0}, knowledge)[0] == [(0, None, 100)]


def test_ranges_of_one_stream_share_a_search_of_a_partition() -> None:
    ranges = [lacking(5, 6, {0: 50}), lacking(9, 9, {0: 80})]
    starts = {5: 20, 9: 40}
    knowledge = Knowledge(
        {0: 0}, lambda name, incarnation, seq, p: starts[seq], lambda name, p: (1, 1), lambda name, p: False
    )
    searches, _ = searches_for("server-1", [as_shown(held) for held in ranges], {0}, knowledge)
    assert [(s.start, s.until) for s in searches] == [(20, 80)]


@st.composite
def some_searches(draw: st.DrawFn) -> list[Search]:
    found = []
    for index in range(draw(st.integers(0, 8))):
        start = draw(st.none() | st.integers(0, 60))
        until = (start or 0) + draw(st.integers(1, 30))
        found.append(Search(f"server-{index}", draw(st.integers(0, 2)), start, until))
    return found


@given(some_searches())
def test_a_plan_reads_what_every_search_needs_once_and_nothing_else(searches: list[Search]) -> None:
    scans = plan(searches)
    assert sorted(id(s) for scan in scans for s in scan.searches) == sorted(map(id, searches))
    for scan in scans:
        for search in scan.searches:
            assert search.partition == scan.partition
            assert (scan.start or 0) <= (search.start or 0)
            assert search.until <= scan.until
    read = [(scan.partition, offset) for scan in scans for offset in range(scan.start or 0, scan.until)]
    needed = {(s.partition, offset) for s in searches for offset in range(s.start or 0, s.until)}
    assert len(read) == len(set(read))
    assert set(read) == needed


reasons = st.sampled_from([BEFORE, GARBLED])
places = st.builds(Place, st.integers(0, 3), st.integers(0, 12)) | st.sampled_from([START, END])
stretches = st.builds(lambda a, b, reason: Hidden(min(a, b), max(a, b), reason), places, places, reasons)


@given(st.integers(1, 12), st.integers(0, 6), st.lists(stretches, max_size=4))
def test_a_batch_is_lost_for_what_hid_it_and_was_never_produced_where_nothing_did(
    first: int, length: int, hidden: list[Hidden]
) -> None:
    found = verdicts(SeqRange(1, 1, first, first + length), hidden)
    said = {seq: v.reason for v in found for seq in range(v.first, v.last + 1)}
    expected = {}
    for seq in range(first, first + length + 1):
        covering = {h.reason for h in hidden if h.after < Place(1, seq) < h.before}
        expected[seq] = GARBLED if GARBLED in covering else BEFORE if BEFORE in covering else NEVER
    assert said == expected
    assert all(a.reason != b.reason for a, b in pairwise(found))


def test_a_record_that_cannot_be_decoded_hides_what_lies_between_its_neighbours() -> None:
    search = Search("server-1", 0, None, 100)
    for seq in (1, 2):
        search.saw(Place(1, seq), Place(1, seq))
    search.met(GARBLED)
    search.saw(Place(1, 1), Place(1, 2))  # sent twice
    search.saw(Place(1, 5), Place(1, 7))
    search.saw(Place(1, 9), Place(1, 9))
    assert search.hidden() == [Hidden(Place(1, 2), Place(1, 5), GARBLED)]
    assert verdicts(SeqRange(1, 1, 3, 4), search.hidden()) == [Verdict(3, 4, GARBLED)]
    assert verdicts(SeqRange(1, 1, 8, 8), search.hidden()) == [Verdict(8, 8, NEVER)]


def test_a_log_that_begins_too_late_hides_everything_before_the_first_batch_seen() -> None:
    search = Search("server-1", 0, None, 100)
    search.met(BEFORE)
    search.saw(Place(2, 4), Place(2, 4))
    assert verdicts(SeqRange(1, 1, 3, 4), search.hidden()) == [Verdict(3, 4, BEFORE)]
    assert verdicts(SeqRange(2, 2, 1, 3), search.hidden()) == [Verdict(1, 3, BEFORE)]
    assert verdicts(SeqRange(2, 2, 5, 6), search.hidden()) == [Verdict(5, 6, NEVER)]


def test_a_log_cut_where_the_emitter_never_wrote_says_nothing() -> None:
    search = Search("server-1", 0, None, 100, heard=False)
    search.met(BEFORE)
    assert search.hidden() == []
    search.met(GARBLED)
    assert search.hidden() == [Hidden(START, END, GARBLED)]
