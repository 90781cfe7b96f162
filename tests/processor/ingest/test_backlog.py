"""Older incarnations that are heard after a newer one had opened: epochs, holes, ends, captures."""

from __future__ import annotations

import json
from random import Random

import pytest

from processor.ingest.backlog import ROOM, Backlog, Elder
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.gate import EventGate
from processor.ingest.outcomes import IngestResult
from processor.ingest.ranges import LossReason
from processor.ingest.source import Horizon, Mark, Position
from processor.ingest.stream import StreamStatus
from tests.processor.ingest.recorder import Recorder, batch

REPAIRED, DUPLICATE, STALE = IngestResult.REPAIRED, IngestResult.DUPLICATE, IngestResult.STALE


class Log:
    """Two partitions, of which the first is yet to be read up to 100."""

    def __init__(self) -> None:
        self.lags = True

    def behind(self, partition: int) -> bool:
        return self.lags and partition == 1

    def positions(self) -> dict[int, int]:
        return {0: 0, 1: 0}

    def replay_status(self, instance_id: str) -> None:
        return None


class Bench:
    def __init__(self) -> None:
        self.recorder, self.log, self.now = Recorder(), Log(), 10.0
        self.gate = self.new_gate()

    def new_gate(self) -> EventGate:
        gate = EventGate(Broadcaster([self.recorder]), clock=lambda: self.now)
        gate.follow(self.log)
        return gate

    def hear(self, incarnation: int, *seqs: int, partition: int = 0, offset: int = 50) -> list[IngestResult]:
        return [self.gate.offer(batch(seq, incarnation), Position(partition, offset)) for seq in seqs]

    def read_on(self, position: int, ends: Mark | None = None) -> None:
        self.gate.repairs.note_ends(ends or {0: 100, 1: 5}, self.now)
        self.gate.repairs.read_on({0: position, 1: 5})

    @property
    def stream(self) -> StreamStatus:
        stream = self.gate.stream("server-1")
        assert stream is not None
        return stream

    def again(self) -> list[tuple[int, int]]:
        gaps = self.gate.repairs.gaps()
        return [(gap.reapply.incarnation, gap.reapply.first) for gap in gaps if gap.reapply is not None]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.hear(2, 1, 2, partition=1)
    return bench


def test_an_incarnation_read_after_its_successor_is_no_conflict_and_no_gap(bench: Bench) -> None:
    assert bench.hear(1, 1, 2, 3, 4) == [REPAIRED] * 4
    assert bench.hear(1, 2) == [DUPLICATE]
    assert (bench.stream.conflict, bench.stream.gap_detected, bench.stream.incarnation) == (False, False, 2)
    admitted = bench.recorder.admissions[2:]
    assert all(admission.l1_void and admission.keep_tombstones for admission in admitted)
    assert all(admission.epoch < bench.stream.epoch for admission in admitted)


def test_a_hole_of_an_incarnation_read_late_is_missing(bench: Bench) -> None:
    bench.hear(1, 3)
    assert (bench.stream.missing, bench.stream.gap_detected) == ([(1, 2)], True)
    assert bench.hear(1, 2, 1) == [REPAIRED] * 2
    assert (bench.stream.missing, bench.stream.gap_detected) == ([], False)


def test_a_backlog_without_older_incarnations_goes_without_trace(bench: Bench) -> None:
    assert not any(admission.keep_tombstones for admission in bench.recorder.admissions)
    bench.read_on(100)
    assert bench.again() == []
    assert bench.hear(1, 1) == [STALE]
    assert bench.gate.counters().gaps == 0


def test_once_it_was_read_the_stream_is_put_through_again_from_what_came_late(bench: Bench) -> None:
    bench.hear(1, 1, 2)
    bench.read_on(99)
    assert bench.again() == []
    bench.read_on(100)
    assert bench.again() == [(1, 1)]
    assert bench.hear(1, 3) == [STALE]


def test_what_was_seen_of_a_predecessor_is_not_lacking(bench: Bench) -> None:
    bench.hear(3, 1, partition=1)
    assert bench.hear(2, 2, 3) == [DUPLICATE, REPAIRED]
    assert bench.stream.missing == []


def test_where_all_was_read_nothing_is_followed() -> None:
    bench = Bench()
    bench.log.lags = False
    bench.hear(2, 1, partition=1)
    assert bench.stream.epoch == 1
    assert bench.hear(1, 1) == [STALE]


def test_a_departure_ends_it(bench: Bench) -> None:
    bench.hear(1, 1)
    bench.gate.drop_instance("server-1", {0: 60, 1: 60})
    assert bench.hear(1, 2) == [STALE]
    assert bench.gate.repairs.gaps() == []
    bench.hear(2, 3, partition=1, offset=60)
    assert bench.hear(1, 3, offset=59) == [STALE]


def test_a_log_cut_where_an_older_incarnation_was_read_loses_its_tail(bench: Bench) -> None:
    bench.hear(1, 1)
    bench.gate.lose_tails(0)
    tails = [(held.incarnation, held.first, held.last, held.reason) for held in bench.stream.lost]
    assert tails == [(1, 2, None, LossReason.BEFORE_LOG), (2, 3, None, LossReason.BEFORE_LOG)]
    assert bench.hear(1, 4) == [REPAIRED]


def test_another_log_ends_it(bench: Bench) -> None:
    bench.hear(1, 1)
    bench.gate.lose_log()
    assert bench.again() == []
    assert bench.hear(1, 9, offset=0) == [REPAIRED], "the tail that was lost with the log holds it"
    assert bench.hear(0, 1) == [STALE]


def test_a_checkpoint_keeps_it(bench: Bench) -> None:
    bench.hear(1, 1)
    kept = json.loads(json.dumps(bench.gate.capture()))
    bench.gate = bench.new_gate()
    bench.gate.restore(kept)
    assert bench.gate.capture() == kept
    assert bench.hear(1, 1, 2) == [DUPLICATE, REPAIRED]
    bench.read_on(100)
    assert bench.again() == [(1, 1)]


@pytest.mark.parametrize("order", ["rising", "falling", "shuffled"])
def test_epochs_lie_as_their_incarnations_do_in_whatever_order_these_turn_up(order: str) -> None:
    incarnations = list(range(1, {"rising": 200, "falling": 200, "shuffled": 12}[order]))
    if order == "falling":
        incarnations.reverse()
    if order == "shuffled":
        Random(3).shuffle(incarnations)
    backlog = Backlog(1, 0.0, Horizon({}), floor=7)
    epochs = {}
    for incarnation in incarnations:
        epoch = backlog.epoch_for(incarnation, 7 + ROOM)
        assert epoch is not None
        backlog.hear(incarnation, 1, epoch, 0)
        epochs[incarnation] = epoch
    rising = [epochs[incarnation] for incarnation in sorted(epochs)]
    assert rising == sorted(set(rising))
    assert 7 < rising[0] < rising[-1] < 7 + ROOM


def test_an_incarnation_for_which_no_epoch_is_left_is_not_followed() -> None:
    backlog = Backlog(1, 0.0, Horizon({}), floor=7, elders={3: Elder(8, 1)})
    assert backlog.epoch_for(2, 7 + ROOM) is None
    assert backlog.epoch_for(3, 7 + ROOM) == 8
