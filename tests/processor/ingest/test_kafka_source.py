"""The Kafka source on real brokers: order, positions, what cannot be read, what a broker may do to a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from deploy.broker import create_topic, delete_topic, make_broker
from processor.ingest import log_reader
from processor.ingest.decode import Decoder
from processor.ingest.kafka_settings import KafkaSettings
from processor.ingest.kafka_source import KafkaEventSource
from processor.ingest.ranges import LossReason
from producer.wire import encode_columns, encode_rows
from tests.brokers import RunningBroker
from tests.processor.ingest.reading import Reader, batch, drop_records, records, send
from tests.waiting import wait_for

NOWHERE = "127.0.0.1:1"
"""A port that nobody listens on."""


@pytest.mark.parametrize("topic", [3], indirect=True)
def test_every_partition_is_read_from_its_start_in_order(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    for partition in range(3):
        name = f"server-{partition}"
        send(kafka_broker, topic, records(range(1, 101), name), name.encode(), partition)
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(300)
    for partition in range(3):
        stream = reader.stream(f"server-{partition}")
        assert (stream.last_seq, stream.gap_detected) == (100, False)
        assert (stream.partition, stream.offset) == (partition, 99)
        seqs = [a.batch.seq for a in reader.recorder.admissions if a.batch.instance_id == stream.instance_id]
        assert seqs == list(range(1, 101))
    status = reader.source.status()
    assert [(p.partition, p.position, p.end, p.lag) for p in status.partitions] == [
        (partition, 100, 100, 0) for partition in range(3)
    ]
    assert (status.lag_seconds, status.error) == (0.0, None)
    assert reader.source.end_offsets().offsets == reader.source.positions() == {0: 100, 1: 100, 2: 100}


def test_records_that_come_later_are_read_as_they_come_in_either_form(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(0)
    for seq in range(1, 6):
        send(kafka_broker, topic, [(encode_rows if seq % 2 else encode_columns)([batch(seq)])])
        wait_for(lambda seq=seq: reader.recorder.seqs[-1:] == [seq], what=f"batch {seq}")  # type: ignore[misc]


def test_a_record_without_time_of_its_emitter_carries_the_record_s(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    producer.produce(topic, encode_rows([batch(1)]), b"server-1", timestamp=1_600_000_000_500)
    producer.flush(20)
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(1)
    assert reader.recorder.admissions[0].batch.event_time == 1_600_000_000.5


def test_it_begins_at_the_positions_it_is_given(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, records(range(1, 11)))
    reader = read(kafka_broker.bootstrap, topic, positions={0: 7})
    reader.wait_for_end(10)
    assert reader.recorder.seqs == [8, 9, 10]


def test_a_restored_source_goes_on_where_the_captured_one_stood(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, records(range(1, 11)))
    first = read(kafka_broker.bootstrap, topic)
    first.wait_for_end(10)
    first.source.stop()
    send(kafka_broker, topic, records([11, 12]))
    second = read(kafka_broker.bootstrap, topic, restored=first)
    second.wait_for_end(12)
    assert second.recorder.seqs == [11, 12]
    assert not second.stream().gap_detected
    assert second.source.knowledge().before("server-1", 1, 8, 0) == 6
    captured = second.source.freeze()()
    assert captured["cluster_id"] and captured["topic_id"]
    assert (captured["positions"], captured["began"]) == ({"0": 12}, {"0": 0})


@pytest.mark.parametrize("topic", [2], indirect=True)
def test_committed_positions_are_what_lag_tools_see_and_nothing_that_reading_goes_by(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, records(range(1, 11)))
    reader = read(kafka_broker.bootstrap, topic, group_id=topic)
    reader.wait_for_end(10)
    assert reader.source.commit({0: 7, 1: 0})
    tool = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": topic})
    seen = tool.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=10)
    tool.close()
    assert [partition.offset for partition in seen] == [7, 0]
    again = read(kafka_broker.bootstrap, topic, group_id=topic)
    again.wait_for_end(10)
    assert again.recorder.seqs == list(range(1, 11))
    assert reader.source.status().commits == {"committed": 1, "refused": 0}


def test_a_refused_commit_is_counted_told_once_and_harms_nothing(
    kafka_broker: RunningBroker,
    topic: str,
    read: Callable[..., Reader],
    caplog: pytest.LogCaptureFixture,
) -> None:
    send(kafka_broker, topic, records([1]))
    reader = read(kafka_broker.bootstrap, topic, group_id=topic)
    reader.wait_for_end(1)
    member = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": topic})
    member.subscribe([topic])
    wait_for(lambda: (member.poll(0.1), member.assignment())[1], 30, "the member to own the partition")
    # A group with members takes offsets from these alone.
    for _ in range(2):
        assert not reader.source.commit({0: 1})
    member.close()
    assert reader.source.status().commits == {"committed": 0, "refused": 2}
    assert len([line for line in caplog.records if "not committed" in line.getMessage()]) == 1
    send(kafka_broker, topic, records([2]))
    reader.wait_for_end(2)
    assert reader.source.status().error is None


def test_positions_can_be_committed_after_the_stop_until_the_close(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, records([1]))
    reader = read(kafka_broker.bootstrap, topic, group_id=topic)
    reader.wait_for_end(1)
    reader.source.stop()
    assert reader.source.commit({0: 1})
    reader.source.close()
    with pytest.raises(RuntimeError, match="closed"):
        reader.source.ask_ends()


def test_what_cannot_be_decoded_is_skipped_counted_logged_once_and_copied(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader], caplog: pytest.LogCaptureFixture
) -> None:
    dead = topic + "-dead"
    create_topic(kafka_broker.bootstrap, dead)
    good = records([1, 2])
    other = encode_rows([batch(3, "server-2")])
    mixed = encode_rows([batch(3), batch(1, "server-2")])
    send(kafka_broker, topic, [good[0], b"{", other, mixed, None, b"", good[1]], headers={"trace": b"7"})
    with caplog.at_level(logging.WARNING, "processor.ingest.dead_letters"):
        reader = read(kafka_broker.bootstrap, topic, dead_letter_topic=dead)
        reader.wait_for_end(7)
    assert reader.recorder.seqs == [1, 2]
    assert reader.source.status().undecodable == 5
    (line,) = [r.getMessage() for r in caplog.records if "cannot be decoded" in r.getMessage()]
    assert f"{topic}[0]@1" in line
    copies = read_all(kafka_broker.bootstrap, dead, 5)
    assert [copy.value() or None for copy in copies] == [b"{", other, mixed, None, None]
    headers = dict(copies[1].headers())
    assert headers["trace"] == b"7"
    assert headers["blendstream.topic"] == topic.encode()
    assert (headers["blendstream.partition"], headers["blendstream.offset"]) == (b"0", b"2")
    assert b"must be the record's key" in headers["blendstream.reason"]
    delete_topic(kafka_broker.bootstrap, dead)


def test_what_a_capture_is_behind_of_has_been_copied(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    dead = topic + "-dead"
    create_topic(kafka_broker.bootstrap, dead)
    send(kafka_broker, topic, [b"{"])
    # The producer would gather copies for a minute.
    reader = read(kafka_broker.bootstrap, topic, dead_letter_topic=dead, properties={"linger.ms": "60000"})
    reader.wait_for_end(1)
    assert reader.source.freeze()()["positions"] == {"0": 1}
    assert [copy.value() for copy in read_all(kafka_broker.bootstrap, dead, 1)] == [b"{"]
    delete_topic(kafka_broker.bootstrap, dead)


def test_a_copy_that_the_topic_for_it_does_not_take_is_counted(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, [b"{" * 2_000])
    reader = read(
        kafka_broker.bootstrap, topic, dead_letter_topic=topic, properties={"message.max.bytes": "1000"}
    )
    reader.wait_for_end(1)
    assert reader.source.status().undecodable == 1
    assert reader.source.status().dead_letters_lost == 1


def test_a_record_without_a_key_is_read(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, records([1]), key=None)
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(1)
    assert reader.recorder.seqs == [1]


def test_a_record_that_cannot_be_decoded_shows_as_a_gap(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, [*records([1]), b"not json", *records([3])])
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(3)
    stream = reader.stream()
    assert [*stream.missing, *((lost.first, lost.last) for lost in stream.lost)] == [(2, 2)]
    assert stream.gap_detected


@pytest.mark.broker("kafka")
def test_partitions_added_later_are_read_from_their_start(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "REFRESH_INTERVAL", 0.2)
    send(kafka_broker, topic, records([1, 2]))
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(2)
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(20)
    send(kafka_broker, topic, records([1], "server-2"), b"server-2", partition=1)
    wait_for(lambda: len(reader.recorder.seqs) == 3, 20, "the new partition's record")
    assert reader.source.positions() == {0: 2, 1: 1}


@pytest.mark.broker("kafka")
def test_a_position_that_the_log_has_dropped_shows_as_a_lost_range_and_reading_goes_on(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, records(range(1, 21)))
    first = read(kafka_broker.bootstrap, topic)
    first.wait_for_end(20)
    first.source.stop()
    send(kafka_broker, topic, records(range(21, 31)))
    drop_records(kafka_broker, topic, before=25)
    # The gate goes on with what it knew, as after a restore.
    second = KafkaEventSource(
        first.gate,
        Decoder(256),
        KafkaSettings(kafka_broker.bootstrap, topic),
        positions=first.source.positions(),
    )
    second.start()
    try:
        wait_for(lambda: first.stream().last_seq == 30, 20, "the rest of the log")
    finally:
        second.stop()
    (lost,) = first.stream().lost
    assert (lost.first, lost.last, lost.reason) == (21, 25, LossReason.BEFORE_LOG)
    assert first.stream().gap_detected
    assert second.positions() == {0: 30}


@pytest.mark.broker("kafka")
def test_a_topic_made_anew_is_read_from_its_start(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "REFRESH_INTERVAL", 0.2)
    send(kafka_broker, topic, records(range(1, 11)))
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(10)
    delete_topic(kafka_broker.bootstrap, topic)
    wait_for(lambda: "does not exist" in (reader.source.status().error or ""), 30, "the topic to be missed")
    create_topic(kafka_broker.bootstrap, topic)
    send(kafka_broker, topic, records([11, 14]))
    wait_for(lambda: reader.recorder.seqs[-1] == 14, 30, "the new log's records")
    assert reader.recorder.seqs == [*range(1, 12), 14]
    stream = reader.stream()
    assert [*stream.missing, *((lost.first, lost.last) for lost in stream.lost)] == [(12, 13)]


def test_a_topic_that_does_not_exist_yet_is_waited_for_and_not_created(
    kafka_broker: RunningBroker, read: Callable[..., Reader], request: pytest.FixtureRequest
) -> None:
    topic = f"late-{kafka_broker.kind}-{id(request)}"
    reader = read(kafka_broker.bootstrap, topic)
    wait_for(lambda: "does not exist" in (reader.source.status().error or ""), 20, "the topic to be missed")
    assert reader.source.status().lag_seconds is None
    assert not reader.source.status().caught_up
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    assert topic not in admin.list_topics(timeout=10).topics
    create_topic(kafka_broker.bootstrap, topic)
    send(kafka_broker, topic, records([1]))
    reader.wait_for_end(1)
    assert reader.recorder.seqs == [1]
    delete_topic(kafka_broker.bootstrap, topic)


@pytest.mark.broker("kafka")
def test_a_topic_that_compacts_is_refused(
    kafka_broker: RunningBroker, read: Callable[..., Reader], request: pytest.FixtureRequest
) -> None:
    topic = f"compacting-{id(request)}"
    create_topic(kafka_broker.bootstrap, topic, config={"cleanup.policy": "compact"})
    send(kafka_broker, topic, records([1]))
    reader = read(kafka_broker.bootstrap, topic)
    wait_for(lambda: "cleanup.policy=compact" in (reader.source.status().error or ""), 20, "the refusal")
    assert reader.recorder.seqs == []
    delete_topic(kafka_broker.bootstrap, topic)


@pytest.mark.broker("kafka")
def test_a_retention_shorter_than_the_repair_window_is_warned_of(
    kafka_broker: RunningBroker,
    read: Callable[..., Reader],
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = f"forgetful-{id(request)}"
    create_topic(kafka_broker.bootstrap, topic, config={"retention.ms": "60000"})
    with caplog.at_level(logging.WARNING, "processor.ingest.kafka_topic"):
        read(kafka_broker.bootstrap, topic).wait_for_end(0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "60 s, less than the repair window of 3600 s" in line
    delete_topic(kafka_broker.bootstrap, topic)


def test_without_a_broker_it_says_so_and_ends_when_told(read: Callable[..., Reader]) -> None:
    reader = read(NOWHERE, "topic")
    wait_for(lambda: reader.source.status().error, 20, "the trouble")
    status = reader.source.status()
    assert (status.lag_seconds, status.caught_up, status.partitions) == (None, False, [])
    assert reader.source.watermark() == 0.0
    assert reader.source.end_offsets().offsets == {}


def test_settings_that_librdkafka_refuses_are_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="no\\.such\\.setting"):
        Reader(NOWHERE, "topic", properties={"no.such.setting": "1"})


def test_settings_that_would_undo_what_reading_rests_on_are_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="auto\\.offset\\.reset must be error, got 'earliest'"):
        Reader(NOWHERE, "topic", properties={"auto.offset.reset": "earliest"})


def test_other_settings_pass_through(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, records([1, 2, 3]))
    reader = read(kafka_broker.bootstrap, topic, properties={"fetch.wait.max.ms": "50"})
    reader.wait_for_end(3)
    assert reader.recorder.seqs == [1, 2, 3]


@pytest.mark.parametrize("topic", [2], indirect=True)
def test_the_watermark_is_the_least_record_time_or_now_at_the_end(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    producer.produce(topic, encode_rows([batch(1)]), b"server-1", 0, timestamp=1_600_000_000_000)
    producer.flush(20)
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(1)
    wait_for(lambda: reader.source.watermark() > 1_700_000_000, 20, "the end to be heard of")


def test_it_knows_where_an_emitter_s_batches_stand(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, records(range(1, 51)))
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(50)
    assert reader.source.knowledge().before("server-1", 1, 31, 0) == 29
    assert reader.source.knowledge().before("server-1", 1, 1, 0) is None


def test_a_departure_s_mark_makes_records_in_the_log_stale_until_the_instance_is_back(
    kafka_broker: RunningBroker, topic: str, read: Callable[..., Reader]
) -> None:
    send(kafka_broker, topic, records([1, 2]))
    reader = read(kafka_broker.bootstrap, topic)
    reader.wait_for_end(2)
    mark = reader.source.end_offsets().offsets
    assert mark == {0: 2}
    reader.gate.drop_instance("server-1", mark)
    again = read(kafka_broker.bootstrap, topic)
    again.gate.drop_instance("server-1", mark)
    again.wait_for_end(2)
    send(kafka_broker, topic, records([1], incarnation=2))
    again.wait_for_end(3)
    assert again.stream().incarnation == 2
    assert again.stream().gap_detected is False


def read_all(bootstrap: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []

    def enough() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message)
        return len(found) >= count

    wait_for(enough, 20, f"{count} records on {topic}")
    consumer.close()
    return found


@pytest.mark.needs("java")
def test_a_broker_that_dies_is_told_of_and_reading_goes_on_when_it_is_back(
    tmp_path: Path, read: Callable[..., Reader]
) -> None:
    with make_broker("kafka", data_dir=tmp_path) as broker:
        where = RunningBroker(broker.bootstrap, "kafka")
        create_topic(where.bootstrap, "events")
        send(where, "events", records([1, 2]))
        reader = read(where.bootstrap, "events")
        reader.wait_for_end(2)
        broker.kill()
        wait_for(lambda: reader.source.status().error, 20, "the outage to be noticed")
        status = reader.source.status()
        assert (status.lag_seconds, status.caught_up) == (None, False)
        assert reader.source.watermark() < time.time() - 0.001
        assert reader.source.end_offsets().offsets == {0: 2}
        broker.start()
        send(where, "events", records([3]))
        reader.wait_for_end(3)
        assert reader.recorder.seqs == [1, 2, 3]
        assert not reader.stream().gap_detected
