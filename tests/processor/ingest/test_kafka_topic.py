"""What a broker tells of a topic: which log it is, its partitions and ends, and when it has to be refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from deploy.broker import create_topic, delete_topic, make_broker
from processor.ingest.kafka_settings import KafkaSettings
from processor.ingest.kafka_topic import LogId, TopicError, TopicInspector
from tests.brokers import RunningBroker
from tests.processor.ingest.reading import drop_records, records, send

TIMEOUT = 10.0


@pytest.fixture
def inspector(kafka_broker: RunningBroker, topic: str) -> Iterator[TopicInspector]:
    asking = TopicInspector(KafkaSettings(kafka_broker.bootstrap, topic))
    yield asking
    asking.close()


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (LogId("c", "t"), LogId("c", "t"), False),
        (LogId("c", "t"), LogId("c", "u"), True),
        (LogId("c", "t"), LogId("d", "t"), True),
        (LogId("c", ""), LogId("c", "t"), False),
        (LogId(), LogId("c", "t"), False),
        (LogId("", "t"), LogId("d", "u"), True),
    ],
)
def test_logs_differ_where_both_ids_are_known_and_unlike(one: LogId, other: LogId, differs: bool) -> None:
    assert one.differs(other) is other.differs(one) is differs


def test_what_is_not_known_of_a_log_is_taken_from_before() -> None:
    assert LogId("c", "").or_else(LogId("d", "t")) == LogId("c", "t")
    assert str(LogId("", "t")) == "topic id t on cluster unknown"


@pytest.mark.parametrize("topic", [3], indirect=True)
def test_partitions_are_told_in_order(inspector: TopicInspector, topic: str) -> None:
    assert inspector.partitions(TIMEOUT) == [0, 1, 2]


def test_a_topic_that_does_not_exist_has_none_and_asking_does_not_make_it(
    kafka_broker: RunningBroker, topic: str
) -> None:
    absent = topic + "-absent"
    asking = TopicInspector(KafkaSettings(kafka_broker.bootstrap, absent))
    try:
        assert asking.partitions(TIMEOUT) == []
        assert asking.partitions(TIMEOUT) == []
    finally:
        asking.close()
    assert absent not in AdminClient({"bootstrap.servers": kafka_broker.bootstrap}).list_topics().topics


@pytest.mark.broker("kafka")
def test_the_bounds_are_the_earliest_offset_and_the_end(
    kafka_broker: RunningBroker, topic: str, inspector: TopicInspector
) -> None:
    assert inspector.bounds(0, TIMEOUT) == (0, 0)
    send(kafka_broker, topic, records(range(1, 6)))
    drop_records(kafka_broker, topic, before=2)
    assert inspector.bounds(0, TIMEOUT) == (2, 5)
    assert inspector.all_bounds(TIMEOUT) == {0: (2, 5)}


def test_where_no_broker_answers_that_is_an_error_and_the_log_unknown() -> None:
    asking = TopicInspector(KafkaSettings("127.0.0.1:9", "events"))
    try:
        with pytest.raises(KafkaException):
            asking.partitions(0.1)
        with pytest.raises(KafkaException):
            asking.bounds(0, 0.1)
        assert asking.log_id(0.1) == LogId()
        asking.check(0.1)  # what cannot be told is believed
    finally:
        asking.close()


@pytest.mark.broker("kafka")
def test_a_log_has_the_ids_of_its_cluster_and_topic(
    kafka_broker: RunningBroker, topic: str, inspector: TopicInspector
) -> None:
    told = inspector.log_id(TIMEOUT)
    assert told.cluster_id and told.topic_id
    assert inspector.log_id(TIMEOUT) == told
    other = TopicInspector(KafkaSettings(kafka_broker.bootstrap, topic + "-absent"))
    try:
        assert other.log_id(TIMEOUT) == LogId()
    finally:
        other.close()


@contextmanager
def asking_about(broker: RunningBroker, topic: str, **config: str) -> Iterator[TopicInspector]:
    """An inspector of a topic made with settings of its own."""
    create_topic(broker.bootstrap, topic, config={name.replace("_", "."): config[name] for name in config})
    asking = TopicInspector(KafkaSettings(broker.bootstrap, topic, repair_window=3600.0))
    try:
        yield asking
    finally:
        asking.close()
        delete_topic(broker.bootstrap, topic)


@pytest.mark.broker("kafka")
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_topic_that_compacts_in_any_way_is_refused(
    kafka_broker: RunningBroker, topic: str, policy: str
) -> None:
    with (
        asking_about(kafka_broker, f"{topic}-own", cleanup_policy=policy) as asking,
        pytest.raises(TopicError, match="eats the history of every emitter"),
    ):
        asking.check(TIMEOUT)


@pytest.mark.broker("kafka")
@pytest.mark.parametrize(("retention", "warnings"), [("60000", 1), ("3600000", 0), ("-1", 0)])
def test_a_short_retention_is_warned_of_once_and_an_endless_one_is_not_short(
    kafka_broker: RunningBroker, topic: str, retention: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        asking_about(kafka_broker, f"{topic}-own", retention_ms=retention) as asking,
    ):
        asking.check(TIMEOUT)
        asking.check(TIMEOUT)
    assert len([r for r in caplog.records if "less than the repair window" in r.getMessage()]) == warnings


def test_a_leader_that_hangs_has_not_told_where_a_partition_ends() -> None:
    with make_broker("embedded") as broker:
        create_topic(broker.bootstrap, "events")
        inspector = TopicInspector(KafkaSettings(broker.bootstrap, "events"))
        try:
            assert inspector.request_ends([0], TIMEOUT)[0].result(TIMEOUT) == 0
            broker.pause()
            with pytest.raises(KafkaException, match="no answer from the leader"):
                inspector.request_ends([0], 1.0)[0].result(TIMEOUT)
        finally:
            broker.resume()
            inspector.close()
