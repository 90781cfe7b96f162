"""What befalls a stream under load ends in exactly the ranges that it should, also across a crash.

A fleet goes on all the while. The trouble is one more emitter's; see `tests.chaos.scene`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from api.client import Client
from deploy.broker import create_topic, delete_topic
from deploy.broker.kafka import KafkaBroker
from processor.durability.inspection import inspect
from producer.events import CacheEventBatch, EventType, Tier
from producer.wire import encode_rows
from tests.brokers import RunningBroker
from tests.chaos.fleet import BACKEND, INSTANCES
from tests.chaos.scene import ODD, QUIET, Range, Scene, batch, length, scene
from tests.e2e.asking import metric
from tests.e2e.processes import blendstream
from tests.processor.ingest.reading import send
from tests.producer.topics import batches_in, records
from tests.waiting import wait_for

pytestmark = pytest.mark.broker("kafka")

FOUR_PARTITIONS = pytest.mark.parametrize("topic", [4], indirect=True)


@pytest.fixture
def holed(kafka_broker: RunningBroker, topic: str, tmp_path: Path) -> Iterator[Scene]:
    """All at work, and the odd emitter has left out 7 to 12."""
    with scene(kafka_broker, topic, tmp_path) as made:
        made.send([*range(1, 7), *range(13, 31)])
        made.wait_until_read()
        assert metric(made.client, "blendstream_gap_detected", instance_id=ODD) == 1
        yield made


@FOUR_PARTITIONS
def test_a_hole_that_was_never_produced_is_exactly_that_range_also_across_a_crash(holed: Scene) -> None:
    # It may have searched by now, or have to do so when it is back.
    holed.crash()
    holed.wait_for_verdict((7, 12, "never_produced"))
    holed.conclude({ODD: [(7, 12, "never_produced")]})


@FOUR_PARTITIONS
def test_what_comes_after_all_leaves_exactly_the_rest_and_brings_back_nothing_that_was_deleted(
    holed: Scene,
) -> None:
    holed.wait_for_verdict((7, 12, "never_produced"))
    # It deletes what 7 will store.
    holed.send([10])
    holed.wait_for_verdict((7, 9, "never_produced"), (11, 12, "never_produced"))
    holed.send([7, 8, 9, 12])
    holed.wait_for_verdict((11, 11, "never_produced"))
    holed.conclude({ODD: [(11, 11, "never_produced")]})


@FOUR_PARTITIONS
def test_a_hole_that_is_filled_lowers_the_flag_and_the_next_one_is_a_range_of_its_own(holed: Scene) -> None:
    holed.wait_for_verdict((7, 12, "never_produced"))
    holed.send(range(7, 13))
    wait_for(lambda: not holed.stream().gap_detected, 10, "the flag falls")
    assert metric(holed.client, "blendstream_gap_detected", instance_id=ODD) == 0
    holed.send(range(33, 41))
    holed.wait_for_verdict((31, 32, "never_produced"))
    holed.conclude({ODD: [(31, 32, "never_produced")]})


POISON: dict[int, bytes | None] = {
    8: b"no JSON at all",
    16: encode_rows([CacheEventBatch("another", 1, 16, EventType.STORE, Tier.L1, BACKEND)]),
    17: encode_rows([batch(17, ODD)]).replace(b'"l1"', b'"l3"'),
    24: b"",
    25: None,
}
"""Records in place of batches: not JSON, of another emitter than the key's, of no tier, empty."""
REASONS = ("JSON", "another", "tier", "truncated", "truncated")
"""What is said of them."""


@FOUR_PARTITIONS
def test_a_poison_record_costs_its_own_batch_and_no_other(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    dead = f"{topic}-dead"
    create_topic(kafka_broker.bootstrap, dead)
    headers: dict[str, str | bytes | None] = {"trace": b"\x00\xff", "empty": None}
    lost: list[Range] = [(8, 8, "undecodable"), (16, 17, "undecodable"), (24, 25, "undecodable")]
    with scene(kafka_broker, topic, tmp_path, "--kafka-dead-letter-topic", dead) as made:
        for seq in range(1, 41):
            if seq in POISON:
                send(kafka_broker, topic, [POISON[seq]], ODD.encode(), headers=headers)
            else:
                made.send([seq])
        made.wait_until_read()
        assert metric(made.client, "blendstream_ingest_batches_total", result="undecodable") == len(POISON)
        with reader_of(kafka_broker) as reader:
            copies = TopicPartition(dead, 0)
            wait_for(lambda: end_of(reader, copies) == len(POISON), 20, "all are copied")
        # What will be lost is hardly searched for by now.
        made.crash()
        made.wait_for_verdict(*lost)
        made.conclude({ODD: lost})
    letters = records(kafka_broker.bootstrap, dead)
    delete_topic(kafka_broker.bootstrap, dead)
    assert [(one.key(), one.value()) for one in letters] == [
        (ODD.encode(), value) for value in POISON.values()
    ]
    for letter, reason in zip(letters, REASONS, strict=True):
        told = dict(letter.headers() or ())
        assert headers.items() <= told.items()
        assert reason in str(told["blendstream.reason"])
        assert (told["blendstream.topic"], told["blendstream.partition"]) == (topic.encode(), b"0")


@pytest.mark.parametrize("killed", [False, True])
def test_partitions_added_under_load_leave_no_gap(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path, killed: bool
) -> None:
    """They are noticed by the running processor, within ten seconds, or by one that starts."""
    with scene(kafka_broker, topic, tmp_path) as made:
        made.send(range(1, 11))
        made.wait_until_read()
        admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(20)
        added = [TopicPartition(topic, partition) for partition in range(1, 8)]
        with reader_of(kafka_broker) as reader:
            wait_for(lambda: any(end_of(reader, one) for one in added), 20, "an emitter moves there")
        made.send(range(11, 21), partition=5)
        made.send(range(21, 31), partition=0)
        if killed:
            made.crash()
        made.wait_until_read()

        def whole() -> bool:
            assert made.stream().lost == [], "nothing is given up that a new partition may hold"
            return gaps(made.client) == gaps(made.client, "_cleared")

        wait_for(whole, 20, "no flag is up")
        made.conclude({})


def gaps(client: Client, which: str = "") -> float | None:
    return metric(client, f"blendstream_gaps{which}_total")


@contextmanager
def reader_of(broker: RunningBroker) -> Iterator[Consumer]:
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    try:
        yield reader
    finally:
        reader.close()


def end_of(reader: Consumer, partition: TopicPartition) -> int:
    """The offset behind the last record; 0 while the partition has no leader yet."""
    try:
        return int(reader.get_watermark_offsets(partition, timeout=10)[1])
    except KafkaException:
        return 0


def cut_by_hand(made: Scene) -> None:
    """Delete all that the log holds by now."""
    admin = AdminClient({"bootstrap.servers": made.broker.bootstrap})
    ends = [TopicPartition(made.topic, partition, OFFSET_END) for partition in range(4)]
    for answer in admin.delete_records(ends).values():
        answer.result(20)


def cut_by_retention(made: Scene) -> None:
    """Let the broker drop what is old until all that there is now is gone; then let it keep the rest."""
    partition = TopicPartition(made.topic, 0)
    with reader_of(made.broker) as reader:
        end = wait_for(lambda: end_of(reader, partition), 20, "the log's end")
        keep(made, 500)
        wait_for(lambda: reader.get_watermark_offsets(partition, timeout=10)[0] >= end, 30, "the log is cut")
        keep(made, -1)
        wait_for(lambda: age_of_log(reader, made.topic) > 2, 30, "nothing more is dropped")


def age_of_log(reader: Consumer, topic: str) -> float:
    """For how many seconds the first record has been there."""
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    message = reader.poll(5)
    return 0 if message is None or message.error() else time.time() - message.timestamp()[1] / 1000


def keep(made: Scene, milliseconds: int) -> None:
    """Set the retention of the topic."""
    setting = ConfigEntry("retention.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, made.topic, incremental_configs=[setting])
    admin = AdminClient({"bootstrap.servers": made.broker.bootstrap})
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(20)


def outlive(made: Scene, cut: Callable[[Scene], None]) -> None:
    """Down while the log goes on and loses what was never read."""
    made.send(range(1, 11))
    made.send(range(1, 6), QUIET)
    for name in (ODD, QUIET):
        made.wait_until_read(name)
    made.client.checkpoint()
    made.process.kill()
    made.send(range(11, 21))
    gone = dict(made.fleet.sent)
    wait_for(lambda: all(made.fleet.sent[name] > gone[name] + 20 for name in INSTANCES), 20, "unread batches")
    cut(made)
    made.send(range(21, 31))
    lost = lost_by(made)
    assert lost[ODD] == [(11, 20, "before_log")]
    assert all(length(one) > 0 for [one] in lost.values())
    made.start()
    for name, ranges in lost.items():
        made.wait_for_verdict(*ranges, instance=name)
    # Nobody knows whether it said more; what it says next tells.
    made.wait_for_verdict((6, None, "before_log"), instance=QUIET)
    made.stays()
    made.send(range(6, 8), QUIET)
    made.wait_for_verdict(instance=QUIET)
    for name in (ODD, "a"):
        blendstream("accept-loss", name, "--url", made.client.url)
        assert not made.stream(name).gap_detected
    kept = {name: ranges for name, ranges in lost.items() if name not in (ODD, "a")}
    made.conclude(kept, never_heard=lost)


def lost_by(made: Scene) -> dict[str, list[Range]]:
    """What lies between the checkpoint's cursors and the first batches of the log; all lost something."""
    current, *_ = inspect(made.state)
    cursors = {stream["instance_id"]: stream["last_seq"] for stream in current.documents["gate"]["streams"]}
    first: dict[str, int] = {}
    with reader_of(made.broker) as reader:
        partitions = reader.list_topics(made.topic, timeout=10).topics[made.topic].partitions
        reader.assign([TopicPartition(made.topic, partition, OFFSET_BEGINNING) for partition in partitions])

        def all_are_found() -> bool:
            message = reader.poll(0.5)
            for one in batches_in([] if message is None else [message]):
                first.setdefault(one.instance_id, one.seq)
            return first.keys() == {ODD, *INSTANCES}

        wait_for(all_are_found, 30, "a batch of everyone")
    return {name: [(cursors[name] + 1, seq - 1, "before_log")] for name, seq in first.items()}


@FOUR_PARTITIONS
def test_what_was_deleted_from_the_log_while_nobody_read_is_exactly_what_is_lost(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    with scene(kafka_broker, topic, tmp_path) as made:
        outlive(made, cut_by_hand)


@pytest.fixture
def forgetful_broker() -> Iterator[RunningBroker]:
    """A broker that looks for old segments all the time."""
    often = {"log.retention.check.interval.ms": "100", "log.initial.task.delay.ms": "100"}
    with KafkaBroker(settings=often) as running:
        yield RunningBroker(running.bootstrap, "kafka")


@pytest.mark.needs("java")
def test_what_outlived_its_retention_while_nobody_read_is_exactly_what_is_lost(
    forgetful_broker: RunningBroker, tmp_path: Path
) -> None:
    create_topic(forgetful_broker.bootstrap, "short", config={"segment.ms": "200"})
    with scene(forgetful_broker, "short", tmp_path) as made:
        outlive(made, cut_by_retention)
