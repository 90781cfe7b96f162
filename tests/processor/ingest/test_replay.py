"""Replay on real brokers: what the log holds is found, what it does not is lost for the right reason."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from deploy.broker import create_topic, make_broker
from processor.batch import Admission, EventBatch
from processor.ingest import log_reader
from processor.ingest.decode import DecodeError, Decoder
from processor.ingest.ranges import LossReason, SeqRange
from processor.ingest.repairs import Gap
from processor.ingest.replay import TRANSITIONS, ReplayEvent, ReplayState, ripe_part
from processor.ingest.source import Horizon, ReplayTotals
from processor.ingest.stream import LostRange
from producer.wire import encode_rows
from tests.brokers import RunningBroker
from tests.processor.ingest.reading import Reader, batch, drop_records, records, send
from tests.waiting import wait_for

Read = Callable[..., Reader]


class Picky(Decoder):
    """A decoder that cannot read some batches of an emitter yet, by their numbers."""

    def __init__(self, *unknown: int, instance_id: str = "server-1") -> None:
        super().__init__(256)
        self.unknown = set(unknown)
        self._instance_id = instance_id

    def decode(self, value: bytes, *, record_time: float) -> list[EventBatch]:
        batches = super().decode(value, record_time=record_time)
        for found in batches:
            if found.seq in self.unknown and found.instance_id == self._instance_id:
                raise DecodeError(("batches", 0), "a form that is not known yet")
        return batches


def wait_for_repair(reader: Reader, instance_id: str = "server-1") -> None:
    wait_for(lambda: not reader.stream(instance_id).gap_detected, 20, "the gap to be repaired")


def wait_for_loss(reader: Reader, instance_id: str = "server-1") -> list[LostRange]:
    def lost() -> list[LostRange]:
        stream = reader.gate.stream(instance_id)
        return [] if stream is None or stream.missing else stream.lost

    return wait_for(lost, 20, "the verdict")


def replayed(reader: Reader) -> ReplayTotals:
    totals = reader.source.status().replay
    assert totals is not None
    return totals


def said_by_replay(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "processor.ingest.replay"]


def outline(lost: list[LostRange]) -> list[tuple[int, int | None, LossReason | None]]:
    return [(held.first, held.last, held.reason) for held in lost]


def test_what_was_not_read_live_is_found_in_the_log_by_itself(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, records(range(1, 11)))
    send(kafka_broker, topic, records(range(1, 11), "server-2"), b"server-2")
    send(kafka_broker, topic, records([11]))
    reader = read(kafka_broker.bootstrap, topic, positions={0: 20})
    wait_for(lambda: reader.recorder.seqs, 20, "the first batch")
    wait_for_repair(reader)
    assert reader.recorder.seqs == [11, *range(1, 11)]
    assert all(admission.repaired for admission in reader.recorder.admissions[1:])
    wait_for(lambda: reader.stream().replay is None, what="the end of the replay")
    counters = replayed(reader)
    assert (counters.scans, counters.records) == (1, {"offered": 10, "skipped": 10, "undecodable": 0})


def test_what_an_emitter_said_before_it_was_taken_for_departed_is_lost_as_that_until_it_registers(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, [b"{"])
    send(kafka_broker, topic, records(range(1, 6)))
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(6)
    reader.gate.drop_instance("server-1", reader.source.end_offsets().offsets)
    send(kafka_broker, topic, records([6, 8]))
    reader.wait_for_end(8)
    assert outline(wait_for_loss(reader)) == [
        (1, 5, LossReason.DEPARTED),
        (7, 7, LossReason.NEVER_PRODUCED),
    ]
    reader.gate.register_instance("server-1")
    reader.source.replay("server-1")
    wait_for(lambda: outline(reader.stream().lost) == [(7, 7, LossReason.NEVER_PRODUCED)], 20, "the repair")
    assert reader.recorder.seqs == [1, 2, 3, 4, 5, 6, 8, 1, 2, 3, 4, 5]


def test_a_record_without_a_key_is_not_skipped(kafka_broker: RunningBroker, topic: str, read: Read) -> None:
    send(kafka_broker, topic, records([1, 2]), key=None)
    send(kafka_broker, topic, records([3]))
    reader = read(kafka_broker.bootstrap, topic, positions={0: 2})
    wait_for(lambda: reader.recorder.seqs == [3, 1, 2], 20, "the repair")


def test_a_hole_that_was_never_produced_is_lost_with_one_line_and_still_repaired_when_it_comes(
    kafka_broker: RunningBroker, topic: str, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    send(kafka_broker, topic, records([1, 2, 5]))
    with caplog.at_level(logging.WARNING, "processor.ingest.replay"):
        reader = read(kafka_broker.bootstrap, topic)
        reader.wait_for_end(3)
        lost = wait_for_loss(reader)
    assert outline(lost) == [(3, 4, LossReason.NEVER_PRODUCED)]
    (line,) = said_by_replay(caplog)
    assert line == "server-1: the log was searched for batches 3 to 4 of 1: 2 lost (never_produced)"
    send(kafka_broker, topic, records([3, 4]))
    wait_for_repair(reader)
    assert reader.recorder.seqs == [1, 2, 5, 3, 4]


def test_a_search_by_hand_that_finds_nothing_says_how_many_batches_are_still_lost(
    kafka_broker: RunningBroker, topic: str, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    send(kafka_broker, topic, records([1, 2, 5, 7]))
    reader = read(kafka_broker.bootstrap, topic)
    wait_for(lambda: len(wait_for_loss(reader)) == 2, 20, "both verdicts")
    wait_for(lambda: reader.source.replay_status("server-1") is None, 20, "the search by itself to end")
    caplog.clear()
    with caplog.at_level(logging.INFO, "processor.ingest.replay"):
        reader.source.replay("server-1", last=4)
        (line,) = wait_for(lambda: said_by_replay(caplog), 20, "the outcome")
    assert line == "server-1: the log was searched for batches 3 to 4 of 1: 2 still lost"


def test_what_cannot_be_decoded_is_lost_and_repaired_by_hand_once_it_can(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, records(range(1, 21)))
    old = read(kafka_broker.bootstrap, topic, decoder=Picky(7, 8, 15))
    old.wait_for_end(20)
    lost = wait_for_loss(old)
    assert outline(lost) == [(7, 8, LossReason.UNDECODABLE), (15, 15, LossReason.UNDECODABLE)]
    old.source.stop()
    upgraded = read(kafka_broker.bootstrap, topic, restored=old)
    upgraded.source.replay("server-1", first=1, last=8)
    wait_for(lambda: upgraded.recorder.seqs[:2] == [7, 8], 20, "what was asked for")
    upgraded.source.replay("server-1")
    wait_for_repair(upgraded)
    assert upgraded.recorder.seqs == [7, 8, 15]


@pytest.mark.broker("kafka")
def test_what_the_log_had_dropped_before_it_was_read_is_lost_as_before_the_log(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, [*records(range(1, 11)), *records([12])])
    drop_records(kafka_broker, topic, before=6)
    fresh = read(kafka_broker.bootstrap, topic)
    fresh.wait_for_end(11)
    lost = wait_for_loss(fresh)
    assert outline(lost) == [(1, 6, LossReason.BEFORE_LOG), (11, 11, LossReason.NEVER_PRODUCED)]
    resumed = read(kafka_broker.bootstrap, topic, positions={0: 10})
    wait_for(lambda: resumed.recorder.seqs == [12, 7, 8, 9, 10], 20, "what the log still holds")
    assert outline(wait_for_loss(resumed)) == outline(lost)


@pytest.mark.parametrize("topic", [2], indirect=True)
def test_a_stream_split_over_partitions_is_searched_on_both(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, records(range(1, 11)), partition=0)
    send(kafka_broker, topic, records(range(11, 21)), partition=1)
    reader = read(kafka_broker.bootstrap, topic, positions={0: 10, 1: 9})
    wait_for(lambda: sorted(reader.recorder.seqs) == list(range(1, 21)), 20, "both halves")
    assert not reader.stream().gap_detected
    wait_for(lambda: replayed(reader).scans == 2, 20, "the scans to be counted")


@pytest.mark.broker("kafka")
def test_partitions_added_while_a_stream_runs_leave_it_whole(
    kafka_broker: RunningBroker, topic: str, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "REFRESH_INTERVAL", 0.2)
    send(kafka_broker, topic, records(range(1, 11)))
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(10)
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(20)
    send(kafka_broker, topic, records([11, 12]), partition=1)
    send(kafka_broker, topic, records([13]), partition=0)
    wait_for(lambda: sorted(reader.recorder.seqs) == list(range(1, 14)), 20, "the whole stream")
    assert (reader.stream().lost, reader.stream().gap_detected) == ([], False)


@pytest.mark.parametrize("topic", [2], indirect=True)
def test_what_live_reading_is_still_to_come_to_is_waited_for(
    kafka_broker: RunningBroker, topic: str, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    others = records(range(1, 3001), "server-2")
    send(kafka_broker, topic, others, b"server-2", partition=0)
    send(kafka_broker, topic, records(range(1, 101)), partition=0)
    send(kafka_broker, topic, records([101]), partition=1)
    with caplog.at_level(logging.INFO, "processor.ingest.replay"):
        reader = read(kafka_broker.bootstrap, topic)
        reader.wait_for_end(3101)
        wait_for_repair(reader)
        wait_for(lambda: reader.stream().replay is None, what="the end of the replay")
    assert replayed(reader).scans == 0
    assert not [line for line in said_by_replay(caplog) if "was searched for batches" in line]


@pytest.mark.parametrize("topic", [2], indirect=True)
def test_an_incarnation_that_lags_on_another_partition_outlives_its_successor(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, records(range(1, 3001), "server-2"), b"server-2", partition=0)
    send(kafka_broker, topic, records(range(1, 101)), partition=0)
    send(kafka_broker, topic, records(range(1, 6), incarnation=2), partition=1)
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(3105)
    mine = [a for a in reader.recorder.admissions if a.batch.instance_id == "server-1"]
    assert {(a.batch.incarnation, a.batch.seq) for a in mine} == {
        *((1, seq) for seq in range(1, 101)),
        *((2, seq) for seq in range(1, 6)),
    }
    assert {a.epoch < reader.stream().epoch for a in mine if a.batch.incarnation == 1} == {True}
    wait_for(lambda: not reader.gate.repairs.asks_for_ends(), 20, "the ends")
    wait_for(lambda: not reader.gate.repairs.gaps(), 20, "the stream to be put through again")
    stream = reader.stream()
    assert (stream.incarnation, stream.conflict, stream.gap_detected, stream.lost) == (2, False, False, [])


class Held(Decoder):
    """A decoder that holds live reading up at certain batches, until it is let go."""

    def __init__(self) -> None:
        super().__init__(256)
        self.let_go = {("server-1", 3): threading.Event(), ("server-2", 1): threading.Event()}

    def decode(self, value: bytes, *, record_time: float) -> list[EventBatch]:
        batches = super().decode(value, record_time=record_time)
        for found in batches:
            event = self.let_go.get((found.instance_id, found.seq))
            assert event is None or event.wait(60)
        return batches


@pytest.mark.parametrize("topic", [2], indirect=True)
def test_a_search_by_hand_does_not_give_up_what_live_reading_is_still_to_come_to(
    kafka_broker: RunningBroker, topic: str, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = Held()
    send(kafka_broker, topic, records([1, 3]), partition=1)
    with caplog.at_level(logging.INFO, "processor.ingest.replay"):
        reader = read(kafka_broker.bootstrap, topic, decoder=decoder)
        wait_for(lambda: reader.recorder.seqs, 20, "the first batch")
        send(kafka_broker, topic, records([1], "server-2"), b"server-2", partition=0)
        send(kafka_broker, topic, records([2]), partition=0)
        decoder.let_go["server-1", 3].set()
        wait_for(lambda: reader.stream().missing, 20, "the gap")
        reader.source.replay("server-1")
        waits = "server-1: the log was searched for batches 2 to 2 of 1: 1 may still be read live"
        wait_for(lambda: waits in said_by_replay(caplog), 20, "the search by hand")
        assert (reader.stream().missing, reader.stream().lost) == ([(2, 2)], [])
        decoder.let_go["server-2", 1].set()
        wait_for_repair(reader)
    assert sorted(reader.recorder.seqs) == [1, 1, 2, 3]


def test_a_batch_that_a_consumer_refused_is_not_searched_for_but_found_by_hand(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, records([1, 2, 3]))
    reader = read(kafka_broker.bootstrap, topic, refuses=lambda admission: admission.batch.seq == 2)
    reader.wait_for_end(3)
    assert reader.stream().missing == [(2, 2)]
    for _ in range(4):
        reader.gate.tick(0.0, 0.0, 60.0)
    assert outline(reader.stream().lost) == [(2, 2, LossReason.CONSUMER_FAILED)]
    assert replayed(reader).scans == 0
    reader.recorder.refuses = lambda admission: False
    reader.source.replay("server-1")
    wait_for_repair(reader)
    assert reader.recorder.seqs == [1, 3, 2]


def test_a_closed_range_is_reapplied_in_order_from_there_to_the_cursor(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, records(range(1, 11)))
    decoder = Picky(4)
    reader = read(kafka_broker.bootstrap, topic, decoder=decoder)
    reader.wait_for_end(10)
    wait_for_loss(reader)
    wait_for(lambda: reader.stream().replay is None, what="the end of the replay")
    reader.gate.tick(1e12, 0.0, 60.0)
    decoder.unknown.clear()
    before = len(reader.recorder.calls)
    reader.source.replay("server-1")
    assert reader.source.replay_status("server-1") is None  # a closed range has to be named
    reader.source.replay("server-1", first=4)
    wait_for_repair(reader)
    wait_for(lambda: reader.source.replay_status("server-1") is None, 20, "the end of the replay")
    assert reader.recorder.calls[before:] == [
        *(("consume", seq) for seq in range(4, 11)),
        ("settle", "server-1"),
    ]
    assert all(a.keep_tombstones for a in reader.recorder.admissions[9:])


@pytest.mark.broker("kafka")
def test_a_scan_ends_by_position_where_transactions_leave_no_records(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(20)
    for seqs, commit in (([1, 2], True), ([3, 4], False)):
        producer.begin_transaction()
        for value in records(seqs):
            producer.produce(topic, value, b"server-1")
        producer.flush(20)
        (producer.commit_transaction if commit else producer.abort_transaction)(20)
    send(kafka_broker, topic, records([5]))
    # Two records and a marker, twice; then the record that shows the gap.
    reader = read(kafka_broker.bootstrap, topic, positions={0: 6})
    assert outline(wait_for_loss(reader)) == [(3, 4, LossReason.NEVER_PRODUCED)]
    assert reader.recorder.seqs == [5, 1, 2]


@pytest.mark.parametrize("topic", [8], indirect=True)
@pytest.mark.broker("kafka")
def test_a_range_is_found_by_reading_one_partition_from_the_seek_point_on(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    for seq in range(1, 1251):
        for emitter in range(16):
            name = f"server-{emitter}"
            producer.produce(topic, records([seq], name)[0], name.encode(), partition=emitter % 8)
        producer.poll(0)
    assert producer.flush(60) == 0
    name = "server-5"
    decoder = Picky(1000, instance_id=name)
    reader = read(kafka_broker.bootstrap, topic, decoder=decoder)
    reader.wait_for_end(20_000, timeout=60)
    assert outline(wait_for_loss(reader, name)) == [(1000, 1000, LossReason.UNDECODABLE)]
    by_itself = replayed(reader)
    assert by_itself.scans == 1
    # Two emitters share a partition; up to where the gap showed, six records lie behind the point before.
    assert sum(by_itself.records.values()) <= 6
    decoder.unknown.clear()
    reader.source.replay(name)
    wait_for_repair(reader, name)
    by_hand = replayed(reader)
    seek = 2 * 1000 - 8
    assert sum(by_hand.records.values()) - sum(by_itself.records.values()) <= 2500 - seek


def test_the_stream_tells_how_far_replay_is_and_live_reading_goes_on_meanwhile(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, records(range(1, 3001)))
    reached, go_on = threading.Event(), threading.Event()

    def hold(admission: Admission) -> bool:
        if admission.repaired and admission.batch.seq == 2500:
            reached.set()
            go_on.wait(20)
        return False

    reader = read(kafka_broker.bootstrap, topic, positions={0: 2999}, refuses=hold)
    assert reached.wait(20)
    status = reader.source.replay_status("server-1")
    go_on.set()
    assert status is not None
    assert (status.state, status.partition, status.until) == ("scanning", 0, 2999)
    assert status.offset is not None and 0 < status.offset < 2500
    wait_for_repair(reader)


def test_it_can_be_stopped_in_the_middle_of_a_scan(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, records(range(1, 3001)))
    reached = threading.Event()

    def note(admission: Admission) -> bool:
        if admission.repaired:
            reached.set()
        return False

    reader = read(kafka_broker.bootstrap, topic, positions={0: 2999}, refuses=note)
    assert reached.wait(20)
    reader.source.stop()
    offered = len(reader.recorder.seqs)
    again = read(kafka_broker.bootstrap, topic, restored=reader)
    wait_for_repair(again)
    assert len(again.recorder.seqs) == 3000 - offered


@pytest.mark.needs("java")
def test_while_the_broker_is_away_replay_backs_off_and_goes_on_when_it_is_back(
    tmp_path: Path, read: Read
) -> None:
    with make_broker("kafka", data_dir=tmp_path) as broker:
        where = RunningBroker(broker.bootstrap, "kafka")
        create_topic(where.bootstrap, "events")
        send(where, "events", records([1, 2, 3]))
        decoder = Picky(2)
        reader = read(where.bootstrap, "events", decoder=decoder)
        wait_for(lambda: reader.recorder.seqs == [1, 3], 20)
        wait_for_loss(reader)
        decoder.unknown.clear()
        broker.kill()
        reader.source.replay("server-1")
        assert reader.stream().replay is not None
        wait_for(lambda: replayed(reader).states["backing_off"], 20, "the first back-off")
        broker.start()
        wait_for_repair(reader)
        assert replayed(reader).failures > 0


def test_a_range_that_showed_later_does_not_hold_up_an_earlier_one() -> None:
    read, ahead = {0: 5, 1: 5}, {0: 9, 1: 5}
    early = SeqRange(1, 1, 2, 2, horizon=Horizon(read, read))
    late = SeqRange(1, 1, 4, 4, horizon=Horizon(read, ahead))
    unasked = SeqRange(1, 1, 6, 6, horizon=Horizon(read))
    gap = Gap("server-1", (early, late, unasked), frozenset({0}), {}, None)
    assert ripe_part(gap, {0: 4, 1: 5}) is None
    for positions, expected in (({0: 5, 1: 5}, (early,)), ({0: 9, 1: 7}, (early, late))):
        ripe = ripe_part(gap, positions)
        assert ripe is not None and ripe.wanted == expected
    # A partition that the reader has not noticed yet may hold it.
    assert ripe_part(gap, {0: 9}) is None


def test_every_replay_comes_to_an_end_whatever_happens() -> None:
    for state in ReplayState:
        events = {event for known, event in TRANSITIONS if known is state}
        assert (ReplayEvent.GONE in events) == (state is not ReplayState.DONE)
    reached = {ReplayState.WAITING, *TRANSITIONS.values()}
    assert reached == set(ReplayState)


def test_an_encoded_batch_of_two_is_searched_as_one_record(
    kafka_broker: RunningBroker, topic: str, read: Read
) -> None:
    send(kafka_broker, topic, [encode_rows([batch(1), batch(2)]), encode_rows([batch(4), batch(5)])])
    reader = read(kafka_broker.bootstrap, topic, positions={0: 1})
    assert outline(wait_for_loss(reader)) == [(3, 3, LossReason.NEVER_PRODUCED)]
    assert reader.recorder.seqs == [4, 5, 1, 2]
