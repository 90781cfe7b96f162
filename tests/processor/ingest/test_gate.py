"""The gate, row by row of the design's table, and what follows from it for operators and consumers."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.batch import Admission, EventBatch
from processor.ingest import failures, ledger
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.gate import EventGate
from processor.ingest.outcomes import IngestResult, UnknownStream
from processor.ingest.ranges import LossReason
from processor.ingest.source import Position
from processor.ingest.stream import LostRange, StreamStatus
from producer.events import EventType
from tests.clock import Clock
from tests.processor.ingest.recorder import Recorder, batch

ADMITTED, REPAIRED = IngestResult.ADMITTED, IngestResult.REPAIRED
DUPLICATE, STALE = IngestResult.DUPLICATE, IngestResult.STALE
WINDOW = 100.0


@dataclass
class Bench:
    """A gate with a clock to turn and consumers that remember."""

    seekable: bool = True
    clock: Clock = field(default_factory=Clock)
    monotonic: Clock = field(default_factory=Clock)
    first: Recorder = field(default_factory=lambda: Recorder("first"))
    second: Recorder = field(default_factory=lambda: Recorder("second"))

    def __post_init__(self) -> None:
        self.gate = EventGate(
            Broadcaster([self.first, self.second]),
            repair_window=WINDOW,
            clock=self.clock,
            monotonic=self.monotonic,
            seekable=self.seekable,
        )

    def offer(self, *seqs: int, incarnation: int = 1) -> list[IngestResult]:
        return [self.gate.offer(batch(seq, incarnation)) for seq in seqs]

    def stream(self) -> StreamStatus:
        status = self.gate.stream("server-1")
        assert status is not None
        return status

    def tick(self, watermark: float = 0.0) -> None:
        self.gate.tick(self.clock(), watermark, 60.0)

    @property
    def last(self) -> Admission:
        return self.first.admissions[-1]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_batches_in_order_are_admitted(bench: Bench) -> None:
    assert bench.offer(1, 2, 3) == [ADMITTED] * 3
    assert bench.first.seqs == bench.second.seqs == [1, 2, 3]
    assert bench.last == bench.first.admissions[-1]
    assert (bench.last.epoch, bench.last.repaired, bench.last.l1_void) == (1, False, False)
    assert not bench.stream().gap_detected


def test_a_batch_seen_before_is_a_duplicate(bench: Bench) -> None:
    assert bench.offer(1, 2, 1, 2) == [ADMITTED, ADMITTED, DUPLICATE, DUPLICATE]
    assert bench.first.seqs == [1, 2]


def test_a_hole_becomes_a_missing_range_and_the_batch_is_applied_all_the_same(bench: Bench) -> None:
    assert bench.offer(1, 5) == [ADMITTED, ADMITTED]
    assert bench.first.seqs == [1, 5]
    assert (bench.stream().missing, bench.stream().gap_detected) == ([(2, 4)], True)
    assert bench.last.keep_tombstones


def test_a_stream_first_seen_in_the_middle_lacks_its_beginning(bench: Bench) -> None:
    bench.offer(7)
    assert bench.stream().missing == [(1, 6)]


def test_a_batch_of_a_missing_range_repairs_it(bench: Bench) -> None:
    assert bench.offer(1, 4, 3, 2) == [ADMITTED, ADMITTED, REPAIRED, REPAIRED]
    assert bench.first.seqs == [1, 4, 3, 2]
    assert bench.stream().gap_detected is False
    repaired = bench.first.admissions[2:]
    assert [(a.repaired, a.epoch, a.l1_void, a.keep_tombstones) for a in repaired] == [
        (True, 1, False, True),
        (True, 1, False, False),
    ]
    assert bench.offer(2) == [DUPLICATE]


def test_a_newer_incarnation_fences_first_and_starts_afresh(bench: Bench) -> None:
    bench.offer(1, 2)
    assert bench.offer(1, incarnation=5) == [ADMITTED]
    assert bench.first.calls == [("consume", 1), ("consume", 2), ("fence", "server-1"), ("consume", 1)]
    status = bench.stream()
    assert (status.incarnation, status.epoch, status.last_seq, status.gap_detected) == (5, 2, 1, False)
    assert bench.last.epoch == 2


def test_a_newer_incarnation_first_seen_in_the_middle_lacks_its_beginning(bench: Bench) -> None:
    bench.offer(1)
    bench.offer(3, incarnation=2)
    assert bench.stream().missing == [(1, 2)]


def test_an_older_incarnation_is_stale(bench: Bench) -> None:
    bench.offer(1, incarnation=5)
    assert bench.offer(2, incarnation=4) == [STALE]
    assert bench.first.seqs == [1]


def test_an_older_incarnation_in_a_range_kept_from_it_repairs_its_l2_half(bench: Bench) -> None:
    bench.offer(1, 4)
    bench.offer(1, incarnation=2)
    assert bench.stream().missing == [(2, 3)]
    assert bench.stream().gap_detected, "a missing range of an older incarnation is still looked for"
    assert bench.offer(3, 4, incarnation=1) == [REPAIRED, STALE]
    assert (bench.last.epoch, bench.last.repaired, bench.last.l1_void) == (1, True, True)
    assert bench.last.keep_tombstones
    assert bench.offer(2, incarnation=1) == [REPAIRED]
    assert not bench.last.keep_tombstones
    assert not bench.stream().gap_detected


def test_a_lost_range_of_an_older_incarnation_shows_but_holds_no_flag() -> None:
    bench = Bench(seekable=False)
    bench.offer(1, 3)
    bench.offer(1, incarnation=2)
    assert bench.stream().lost == [LostRange(2, 2, 1, LossReason.NO_LOG)]
    assert (bench.stream().lost_batches, bench.stream().gap_detected) == (1, False)
    assert bench.offer(2, incarnation=1) == [REPAIRED]


def test_without_a_log_what_is_missing_is_lost_at_once_and_still_repaired() -> None:
    bench = Bench(seekable=False)
    bench.offer(1, 4)
    assert bench.stream().missing == []
    assert bench.stream().lost == [LostRange(2, 3, 1, LossReason.NO_LOG)]
    assert bench.stream().gap_detected
    assert bench.offer(2) == [REPAIRED]
    assert bench.stream().lost == [LostRange(3, 3, 1, LossReason.NO_LOG)]


def test_a_lost_range_is_closed_after_the_window_but_goes_only_when_accepted() -> None:
    bench = Bench(seekable=False)
    bench.offer(1, 4)
    bench.clock.now += WINDOW
    bench.tick()
    assert bench.offer(2) == [REPAIRED]
    bench.clock.now += 1
    bench.tick()
    assert ("settle", "server-1") in bench.first.calls, "tombstones wait for it no longer"
    assert bench.offer(3) == [DUPLICATE]
    assert bench.stream().gap_detected
    assert bench.gate.accept_loss("server-1").gap_detected, "what is closed has to be named"
    status = bench.gate.accept_loss("server-1", first=1)
    assert (status.lost, status.gap_detected) == ([], False)


def test_a_missing_range_waits_for_ever(bench: Bench) -> None:
    bench.offer(1, 4)
    bench.clock.now += 1000 * WINDOW
    bench.tick()
    assert bench.offer(2) == [REPAIRED]


def test_accepting_a_loss_takes_out_what_is_named(bench: Bench) -> None:
    bench.offer(1, 10)
    assert bench.gate.accept_loss("server-1", 1, 4, 5).missing == [(2, 3), (6, 9)]
    assert bench.offer(4) == [DUPLICATE]
    assert bench.gate.accept_loss("server-1", 2).missing == [(2, 3), (6, 9)]
    assert bench.gate.accept_loss("server-1").missing == []
    assert not bench.stream().gap_detected
    assert bench.first.calls.count(("settle", "server-1")) == 1


def test_nothing_can_be_accepted_for_a_stranger(bench: Bench) -> None:
    with pytest.raises(UnknownStream):
        bench.gate.accept_loss("nobody")
    with pytest.raises(UnknownStream):
        bench.gate.reset("nobody")
    assert bench.gate.stream("nobody") is None


def test_consumers_are_told_once_when_no_range_is_open_any_more(bench: Bench) -> None:
    bench.offer(1, 3, 2, 4)
    assert bench.first.calls == [
        ("consume", 1), ("consume", 3), ("consume", 2), ("settle", "server-1"), ("consume", 4),
    ]  # fmt: skip


def test_shared_tombstones_expire_only_while_no_emitter_has_an_open_range(bench: Bench) -> None:
    bench.offer(1)
    bench.tick(watermark=500.0)
    assert bench.first.calls[-1] == ("expire", 440.0)
    bench.gate.offer(batch(2, instance_id="server-2"))
    bench.tick(watermark=600.0)
    assert bench.first.calls[-1] == ("consume", 2)
    bench.gate.accept_loss("server-2")
    bench.tick(watermark=700.0)
    assert bench.first.calls[-1] == ("expire", 640.0)


def test_a_departed_instance_is_fenced_and_forgotten_and_comes_back_with_a_later_epoch(bench: Bench) -> None:
    bench.offer(1, 3)
    assert bench.gate.drop_instance("server-1") is True
    assert bench.first.calls[-2:] == [("fence", "server-1"), ("settle", "server-1")]
    assert bench.gate.stream("server-1") is None
    assert bench.gate.drop_instance("server-1") is False
    assert bench.offer(1, incarnation=1) == [ADMITTED]
    assert bench.stream().epoch == 2


def test_records_from_before_a_departure_s_mark_are_stale_until_the_instance_registers(bench: Bench) -> None:
    offer = bench.gate.offer
    offer(batch(1), Position(0, 10))
    bench.gate.drop_instance("server-1", {0: 20, 1: 5})
    assert offer(batch(2), Position(0, 19)) is STALE
    assert offer(batch(2), Position(1, 4)) is STALE
    assert offer(batch(1, 9), Position(0, 20)) is ADMITTED
    assert offer(batch(2, 9), Position(1, 4)) is STALE, "the mark outlives the fresh cursor"
    assert offer(batch(2, 9), Position(2, 0)) is ADMITTED, "a partition that came later has no mark"
    bench.gate.register_instance("server-1")
    assert offer(batch(3, 9), Position(1, 4)) is ADMITTED


def test_a_mark_goes_once_the_log_begins_behind_it_on_every_partition(bench: Bench) -> None:
    offer, free = bench.gate.offer, bench.gate.free_marks
    bench.gate.drop_instance("server-1", {0: 20, 1: 5})
    bench.gate.drop_instance("server-2", {0: 30, 1: 5})
    free({0: 20})
    assert offer(batch(1), Position(1, 4)) is STALE, "nothing is known of the other partition"
    free({0: 20, 1: 5})
    assert sorted(bench.gate.capture()["marks"]) == ["server-2"]
    assert offer(batch(1), Position(1, 4)) is ADMITTED
    assert offer(batch(1, instance_id="server-2"), Position(1, 4)) is STALE


def test_a_mark_means_nothing_in_another_log(bench: Bench) -> None:
    bench.gate.drop_instance("server-1", {0: 5})
    assert bench.gate.marked
    bench.gate.lose_log()
    assert not bench.gate.marked


def test_epochs_of_the_forgotten_are_bounded_and_rise_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "MAX_FORGOTTEN", 2)

    def comes_and_goes(name: str) -> int:
        bench.gate.offer(batch(1, instance_id=name))
        status = bench.gate.stream(name)
        assert status is not None
        bench.gate.drop_instance(name)
        return status.epoch

    assert [comes_and_goes("a") for _ in range(3)] == [1, 2, 3]
    assert [comes_and_goes(name) for name in ("b", "c")] == [1, 1]
    assert bench.gate.capture()["epochs"] == {"b": 1, "c": 1}
    assert bench.gate.capture()["epoch_floor"] == 3
    assert comes_and_goes("a") == 4, "it rises though its name was forgotten"
    assert comes_and_goes("c") == 2
    assert comes_and_goes("new") == 4


def test_a_departure_of_one_never_heard_leaves_its_mark_all_the_same(bench: Bench) -> None:
    bench.gate.drop_instance("server-1", {0: 20})
    assert bench.gate.offer(batch(1), Position(0, 3)) is STALE


def test_reset_fences_and_lets_any_incarnation_in(bench: Bench) -> None:
    bench.offer(1, 5, incarnation=9)
    bench.gate.drop_instance("server-2", {0: 100})
    bench.gate.reset("server-1")
    assert ("fence", "server-1") in bench.first.calls
    assert bench.offer(1, incarnation=2) == [ADMITTED]
    assert (bench.stream().incarnation, bench.stream().epoch, bench.stream().conflict) == (2, 2, False)


@pytest.mark.parametrize(
    "other",
    [batch(2, ts=9.0), batch(2, ts=2.0, event_type=EventType.DELETE), batch(2, ts=2.0, entries=3)],
)
def test_a_duplicate_with_other_contents_is_a_conflict(bench: Bench, other: EventBatch) -> None:
    bench.gate.offer(batch(1, ts=1.0))
    bench.gate.offer(batch(2, ts=2.0))
    bench.gate.offer(batch(2, ts=2.0))
    assert not bench.stream().conflict
    assert bench.gate.offer(other) is DUPLICATE
    assert bench.stream().conflict


def test_a_repaired_batch_is_remembered_for_conflicts_too(bench: Bench) -> None:
    bench.gate.offer(batch(2, ts=2.0))
    bench.gate.offer(batch(1, ts=1.0))
    bench.gate.offer(batch(1, ts=1.0))
    assert not bench.stream().conflict
    bench.gate.offer(batch(1, ts=1.5))
    assert bench.stream().conflict


def test_an_emitter_heard_only_as_stale_is_a_conflict_until_the_right_one_is_heard(bench: Bench) -> None:
    bench.offer(1, incarnation=9)
    bench.offer(1, 2, 3, incarnation=4)
    assert bench.stream().conflict
    bench.offer(2, incarnation=9)
    assert not bench.stream().conflict
    bench.offer(4, incarnation=4)
    assert not bench.stream().conflict, "a straggler is none"


def test_an_older_incarnation_that_speaks_after_the_newer_one_is_a_conflict(bench: Bench) -> None:
    bench.gate.offer(batch(1, 9, ts=50.0))
    bench.gate.offer(batch(7, 4, ts=49.0))
    assert not bench.stream().conflict
    bench.gate.offer(batch(8, 4, ts=51.0))
    bench.gate.offer(batch(2, 9, ts=52.0))
    assert bench.stream().conflict, "that the newer one is heard as well clears nothing"
    bench.gate.offer(batch(1, 10, ts=53.0))
    assert not bench.stream().conflict


def test_a_conflict_is_logged_once_a_minute_whatever_is_done_to_the_time_of_day(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.offer(1, incarnation=9)
    with caplog.at_level(logging.WARNING):
        bench.offer(*range(1, 10), incarnation=4)
        bench.clock.now += 3600
        bench.offer(10, incarnation=4)
        assert len(caplog.records) == 1
        bench.clock.now -= 7200
        bench.monotonic.now += 60
        bench.offer(11, incarnation=4)
    assert len(caplog.records) == 2
    assert "server-1" in caplog.text


def test_a_consumer_that_raises_costs_the_others_nothing(bench: Bench) -> None:
    bench.second.refuses = lambda admission: admission.batch.seq == 2
    assert bench.offer(1, 2, 3) == [ADMITTED] * 3
    assert (bench.first.seqs, bench.second.seqs) == ([1, 2, 3], [1, 3])
    assert bench.stream().missing == [(2, 2)]
    assert bench.stream().gap_detected


def test_a_failed_batch_is_offered_again_to_those_who_lack_it(bench: Bench) -> None:
    bench.second.refuses = lambda admission: admission.batch.seq == 2
    bench.offer(1, 2)
    bench.second.refuses = lambda admission: False
    bench.tick()
    assert (bench.first.seqs, bench.second.seqs) == ([1, 2], [1, 2])
    assert bench.second.admissions[-1].repaired
    assert not bench.stream().gap_detected
    assert bench.second.calls[-2][0] == "settle"


def test_a_batch_that_always_fails_is_offered_again_three_times_and_then_lost(bench: Bench) -> None:
    offered: list[int] = []

    def refuse(admission: Admission) -> bool:
        offered.append(admission.batch.seq)
        return True

    bench.second.refuses = refuse
    bench.offer(1)
    for _ in range(6):
        bench.tick()
    assert offered == [1] * 4
    assert bench.stream().lost == [LostRange(1, 1, 1, LossReason.CONSUMER_FAILED)]


def test_a_lost_batch_delivered_again_reaches_only_those_who_lack_it(bench: Bench) -> None:
    bench.second.refuses = lambda admission: True
    bench.offer(1)
    for _ in range(4):
        bench.tick()
    bench.second.refuses = lambda admission: False
    assert bench.offer(1) == [REPAIRED]
    assert (bench.first.seqs, bench.second.seqs) == ([1], [1])
    assert bench.gate.counters().entries["store"] == 1


def test_a_failed_batch_whose_loss_is_accepted_is_not_offered_again(bench: Bench) -> None:
    bench.second.refuses = lambda admission: True
    bench.offer(1)
    bench.gate.accept_loss("server-1")
    bench.second.refuses = lambda admission: False
    bench.tick()
    assert bench.second.seqs == []


def test_a_failed_batch_of_an_incarnation_that_ended_is_void_in_l1(bench: Bench) -> None:
    bench.second.refuses = lambda admission: True
    bench.offer(1)
    bench.second.refuses = lambda admission: False
    bench.offer(1, incarnation=2)
    bench.tick()
    again = bench.second.admissions[-1]
    assert (again.batch.incarnation, again.epoch, again.l1_void) == (1, 1, True)


def test_so_many_failures_do_not_fill_the_memory(bench: Bench) -> None:
    bench.second.refuses = lambda admission: True
    bench.offer(*range(1, failures.MAX_BATCHES + 11))
    assert bench.stream().missing == [(1, failures.MAX_BATCHES)]
    assert bench.stream().lost_batches == 10


def test_a_departed_instance_s_failures_are_forgotten(bench: Bench) -> None:
    bench.second.refuses = lambda admission: True
    bench.offer(1)
    bench.gate.drop_instance("server-1")
    bench.second.refuses = lambda admission: False
    bench.tick()
    assert bench.second.seqs == []


def test_a_log_cut_where_it_was_read_leaves_a_lost_range_that_the_next_batch_ends(bench: Bench) -> None:
    bench.gate.offer(batch(1), Position(0, 0))
    bench.gate.offer(batch(1, instance_id="elsewhere"), Position(1, 0))
    bench.gate.lose_tails(0)
    assert bench.stream().lost == [LostRange(2, None, 1, LossReason.BEFORE_LOG)]
    assert bench.gate.streams(gap=True) == [bench.stream()]
    bench.gate.offer(batch(5), Position(0, 9))
    assert bench.stream().lost == [LostRange(2, 4, 1, LossReason.BEFORE_LOG)]
    assert bench.gate.offer(batch(3), Position(1, 9)) is REPAIRED


@pytest.mark.parametrize(
    ("first", "last", "goes"), [(3, None, False), (2, 9, False), (2, None, True), (None, None, True)]
)
def test_a_lost_range_without_an_end_is_accepted_whole_or_not_at_all(
    bench: Bench, first: int | None, last: int | None, goes: bool
) -> None:
    bench.gate.offer(batch(1), Position(0, 0))
    bench.gate.lose_tails(0)
    assert (bench.gate.accept_loss("server-1", first=first, last=last).lost == []) is goes
    bench.gate.offer(batch(4), Position(0, 9))
    status = bench.stream()
    assert [*status.missing, *((lost.first, lost.last) for lost in status.lost)] == [(2, 3)]
    assert [bench.gate.offer(batch(seq)) for seq in (2, 2)] == [REPAIRED, DUPLICATE]


def test_a_log_cut_where_nothing_was_lost_leaves_no_trace(bench: Bench) -> None:
    bench.gate.offer(batch(1), Position(0, 0))
    bench.gate.lose_tails(0)
    bench.gate.lose_tails(0)
    assert bench.gate.offer(batch(2), Position(0, 1)) is ADMITTED
    assert (bench.stream().lost, bench.stream().gap_detected) == ([], False)


def test_streams_are_listed_by_name_and_narrowed_by_gap(bench: Bench) -> None:
    for name, seq in (("b", 1), ("a", 2), ("c", 1)):
        bench.gate.offer(batch(seq, instance_id=name, ts=7.0), Position(3, 4))
    assert [status.instance_id for status in bench.gate.streams()] == ["a", "b", "c"]
    assert [status.instance_id for status in bench.gate.streams(gap=True)] == ["a"]
    assert [status.instance_id for status in bench.gate.streams(gap=False)] == ["b", "c"]
    status = bench.gate.streams()[0]
    assert (status.partition, status.offset, status.last_event_ts, status.replay) == (3, 4, 7.0, None)
    assert (status.missing_batches, status.lost_batches) == (1, 0)


def test_counters_tell_gaps_fences_and_batches(bench: Bench) -> None:
    bench.offer(1, 3, 5)
    bench.offer(2, 4, 4)
    bench.offer(1, incarnation=2)
    bench.offer(9, incarnation=1)
    bench.gate.offer(batch(2, 2, event_type=EventType.ACCESS, entries=5))
    counters = bench.gate.counters()
    assert (counters.gaps, counters.gaps_cleared, counters.fences) == (1, 1, 1)
    assert counters.batches == {"admitted": 5, "repaired": 2, "duplicate": 1, "stale": 1}
    assert counters.entries == {"store": 6, "delete": 0, "access": 5, "config": 0}


def test_a_summary_counts_repaired_batches_as_applied(bench: Bench) -> None:
    summary = bench.gate.offer_all([batch(1, 2), batch(3, 2), batch(2, 2), batch(2, 2), batch(1, 1)])
    assert (summary.applied, summary.duplicates, summary.stale) == (3, 1, 1)


def test_threads_that_offer_at_once_leave_each_stream_in_order(bench: Bench) -> None:
    names = [f"server-{i}" for i in range(4)]

    def run(name: str) -> None:
        for seq in range(1, 301):
            bench.gate.offer(batch(seq, instance_id=name))

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        seqs = [a.batch.seq for a in bench.first.admissions if a.batch.instance_id == name]
        assert seqs == list(range(1, 301))
    assert [a.batch for a in bench.first.admissions] == [a.batch for a in bench.second.admissions]


deliveries = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 8)), max_size=60)


@given(deliveries, st.booleans())
def test_it_decides_as_a_gate_of_single_numbers_would(sent: list[tuple[int, int]], seekable: bool) -> None:
    """The oracle keeps one number a batch: what it lacks, by incarnation."""
    bench = Bench(seekable=seekable)
    current, last = 0, 0
    lacking: set[tuple[int, int]] = set()
    for incarnation, seq in sent:
        if incarnation > current:
            current, last = incarnation, 0
        if (incarnation, seq) in lacking:
            lacking.discard((incarnation, seq))
            expected = REPAIRED
        elif incarnation < current:
            expected = STALE
        elif seq <= last:
            expected = DUPLICATE
        else:
            lacking |= {(incarnation, hole) for hole in range(last + 1, seq)}
            last = seq
            expected = ADMITTED
        assert bench.offer(seq, incarnation=incarnation) == [expected]
        status = bench.stream()
        assert (status.incarnation, status.last_seq) == (current, last)
        assert status.missing_batches + status.lost_batches == len(lacking)
        flagged = lacking if seekable else {hole for hole in lacking if hole[0] == current}
        assert status.gap_detected is bool(flagged)
        if expected in (ADMITTED, REPAIRED):
            assert bench.last.keep_tombstones is bool(lacking)
            assert bench.last.l1_void is (incarnation < current)


@given(st.permutations(range(1, 9)), st.lists(st.integers(1, 8), max_size=8))
def test_whatever_the_order_every_batch_is_applied_once_and_no_gap_remains(
    order: list[int], again: list[int]
) -> None:
    bench = Bench()
    bench.offer(*order, *again)
    assert sorted(bench.first.seqs) == list(range(1, 9))
    assert not bench.stream().gap_detected


def test_contents_are_kept_while_anyone_lacks_a_batch(bench: Bench) -> None:
    bench.offer(1)
    assert not bench.last.keep_contents
    bench.gate.offer(batch(2, instance_id="server-2"))
    bench.offer(2)
    assert bench.last.keep_contents, "another emitter has an open range"
    assert not bench.last.keep_tombstones
    bench.gate.offer(batch(1, instance_id="server-2"))
    assert bench.last.keep_contents, "this batch filled one"
    bench.offer(3)
    assert not bench.last.keep_contents
