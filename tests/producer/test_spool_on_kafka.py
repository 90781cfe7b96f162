"""A spool before a real broker that is stopped, frozen and started: no batch missing, none out of order."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.broker import create_topic
from deploy.broker.kafka import KafkaBroker
from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier
from producer.sinks.kafka_carrier import KafkaCarrier
from producer.sinks.spool import SpoolSink
from tests.brokers import RunningBroker
from tests.producer.topics import batches_in, fail_for_good, records
from tests.waiting import wait_for

Number = tuple[int, int]
"""Incarnation and seq of a batch."""

needs_a_broker_to_stop = pytest.mark.needs("java")


def batch(seq: int, incarnation: int = 1, tokens: int = 4) -> CacheEventBatch:
    entry = CacheEventEntry(ObjectKey(seq.to_bytes(32, "big"), "llama", 1), 10, range(tokens), 0)
    return CacheEventBatch("server-1", incarnation, seq, EventType.STORE, Tier.L1, "dram", [entry])


def numbers(count: int, incarnation: int = 1) -> list[Number]:
    return [(incarnation, seq) for seq in range(1, count + 1)]


def arrived(bootstrap: str, topic: str) -> list[Number]:
    """The batches of a topic in order of their first arrival; readers drop a second one."""
    found = batches_in(records(bootstrap, topic))
    return list(dict.fromkeys((one.incarnation, one.seq) for one in found))


@pytest.fixture(scope="module")
def own_broker() -> Iterator[KafkaBroker]:
    """A broker of this module's own, to be stopped."""
    with KafkaBroker() as running:
        yield running


@pytest.fixture
def broker(own_broker: KafkaBroker) -> Iterator[KafkaBroker]:
    """That broker, running before the test and after it."""
    yield own_broker
    own_broker.resume()
    if not own_broker.alive():
        own_broker.start()


@contextmanager
def publishing(sink: SpoolSink) -> Iterator[list[CacheEventBatch]]:
    """Publishes batch after batch from another thread meanwhile; gives what was published so far."""
    published: list[CacheEventBatch] = []
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.002):
            one = batch(len(published) + 1)
            sink.publish([one])
            published.append(one)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield published
    finally:
        ended.set()
        thread.join()


def test_batches_arrive_once_in_order_and_the_spool_is_empty_after(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    sink = SpoolSink(tmp_path, KafkaCarrier(kafka_broker.bootstrap, topic))
    for first in range(1, 301, 50):
        sink.publish([batch(seq) for seq in range(first, first + 50)])
    assert sink.flush(20)
    counters = sink.counters()
    sink.close()
    assert (counters.delivered, counters.waiting, counters.retries) == (300, 0, 0)
    found = records(kafka_broker.bootstrap, topic)
    assert [(one.incarnation, one.seq) for one in batches_in(found)] == numbers(300)
    assert {message.key() for message in found} == {b"server-1"}


def test_the_stream_goes_on_in_order_after_the_producer_failed_for_good(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    carrier = KafkaCarrier(kafka_broker.bootstrap, topic)
    sink = SpoolSink(tmp_path, carrier)
    with publishing(sink) as published:
        wait_for(lambda: sink.counters().delivered > 20, 20)
        fail_for_good(carrier._producer)
        wait_for(lambda: sink.counters().retries, 20)
        before = sink.counters().delivered
        wait_for(lambda: sink.counters().delivered > before + 20, 20)
    assert sink.flush(20)
    sink.close()
    assert arrived(kafka_broker.bootstrap, topic) == numbers(len(published))


@needs_a_broker_to_stop
@pytest.mark.parametrize("queue", ["100000", "20"])
def test_while_the_broker_is_down_batches_wait_on_disk_and_none_is_missing_after(
    broker: KafkaBroker, tmp_path: Path, queue: str
) -> None:
    """Also where librdkafka's queue is full long before the broker is back."""
    topic = create_topic_for(broker, f"down-{queue}")
    properties = {"queue.buffering.max.messages": queue}
    sink = SpoolSink(tmp_path, KafkaCarrier(broker.bootstrap, topic, properties=properties))
    with publishing(sink) as published:
        wait_for(lambda: sink.counters().delivered > 20, 20)
        broker.stop()
        wait_for(lambda: sink.counters().waiting > 200, 20)
        broker.start()
        wait_for(lambda: sink.counters().waiting < 50, 60)
    assert sink.flush(60)
    sink.close()
    assert arrived(broker.bootstrap, topic) == numbers(len(published))


@needs_a_broker_to_stop
def test_a_broker_that_freezes_and_one_that_is_killed_cost_no_batch(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = create_topic_for(broker, "frozen")
    sink = SpoolSink(tmp_path, KafkaCarrier(broker.bootstrap, topic))
    with publishing(sink) as published:
        wait_for(lambda: sink.counters().delivered > 20, 20)
        broker.pause()
        wait_for(lambda: sink.counters().waiting > 100, 20)
        broker.resume()
        wait_for(lambda: sink.counters().waiting < 50, 60)
        broker.kill()
        wait_for(lambda: sink.counters().waiting > 100, 20)
        broker.start()
    assert sink.flush(60)
    sink.close()
    assert arrived(broker.bootstrap, topic) == numbers(len(published))


KILLED = """
import pathlib, sys
from producer.sinks.kafka_carrier import KafkaCarrier
from producer.sinks.spool import SpoolSink
from tests.producer.test_spool_on_kafka import batch
folder, bootstrap, topic, incarnation = sys.argv[1:]
sink = SpoolSink(pathlib.Path(folder), KafkaCarrier(bootstrap, topic))
seq = 0
while True:
    seq += 1
    sink.publish([batch(seq, int(incarnation))])
    print(seq, flush=True)
"""


def publish_until(
    folder: Path, broker: KafkaBroker, topic: str, incarnation: int, count: int, freeze_at: int
) -> int:
    """Publish from a process that is killed on the spot; the last seq that it said it had published."""
    arguments = [str(folder), broker.bootstrap, topic, str(incarnation)]
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    last = 0
    for line in process.stdout:
        last = int(line)
        if last == freeze_at:
            broker.pause()
        if last >= count:
            break
    process.kill()
    rest = process.stdout.read().split("\n")[:-1]
    process.stdout.close()
    process.wait()
    return int(rest[-1]) if rest else last


@needs_a_broker_to_stop
def test_what_killed_emitters_left_goes_first_and_the_new_incarnation_after(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = create_topic_for(broker, "killed")
    last = [publish_until(tmp_path, broker, topic, incarnation, 500, 200) for incarnation in (1, 2)]
    sink = SpoolSink(tmp_path, KafkaCarrier(broker.bootstrap, topic))
    sink.publish([batch(seq, 3) for seq in range(1, 11)])
    assert not sink.flush(0.2)
    broker.resume()
    assert sink.flush(60)
    assert sink.counters().damaged == 0
    sink.close()
    found = arrived(broker.bootstrap, topic)
    for incarnation, published in enumerate(last, 1):
        # A process may be killed between a batch's way to disk and its word of it.
        assert len([one for one in found if one[0] == incarnation]) in (published, published + 1)
    by_incarnation = [one for i in (1, 2, 3) for one in numbers(len([f for f in found if f[0] == i]), i)]
    assert found == by_incarnation
    assert found[-10:] == numbers(10, 3)


@needs_a_broker_to_stop
def test_a_record_that_the_broker_will_not_take_costs_itself_alone(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = create_topic_for(broker, "limited", {"max.message.bytes": "20000"})
    properties = {"compression.type": "none"}
    with_too_large = [batch(seq, tokens=20_000 if seq in (30, 31) else 4) for seq in range(1, 101)]
    sink = SpoolSink(tmp_path, KafkaCarrier(broker.bootstrap, topic, properties=properties))
    sink.publish(with_too_large)
    assert sink.flush(60)
    counters = sink.counters()
    sink.close()
    assert (counters.rejected, counters.waiting) == (2, 0)
    assert arrived(broker.bootstrap, topic) == [one for one in numbers(100) if one[1] not in (30, 31)]


@needs_a_broker_to_stop
def test_batches_wait_for_a_topic_that_is_not_there_yet(broker: KafkaBroker, tmp_path: Path) -> None:
    properties = {"allow.auto.create.topics": "false", "topic.metadata.propagation.max.ms": "200"}
    sink = SpoolSink(tmp_path, KafkaCarrier(broker.bootstrap, "late", properties=properties))
    sink.publish([batch(seq) for seq in range(1, 21)])
    wait_for(lambda: sink.counters().retries, 20)
    create_topic(broker.bootstrap, "late", partitions=1)
    assert sink.flush(60)
    sink.close()
    assert arrived(broker.bootstrap, "late") == numbers(20)


def create_topic_for(broker: KafkaBroker, name: str, settings: dict[str, str] | None = None) -> str:
    create_topic(broker.bootstrap, name, config=settings)
    return name


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"message.timeout.ms": "300000"}, "message.timeout.ms must be 0, got '300000'"),
        ({"delivery.timeout.ms": "1"}, "delivery.timeout.ms must be 0"),
        ({"enable.gapless.guarantee": "false"}, "enable.gapless.guarantee must be true"),
        ({"acks": "1"}, "acks must be all"),
    ],
)
def test_a_property_that_would_undo_order_or_waiting_is_refused(
    properties: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        KafkaCarrier("127.0.0.1:1", properties=properties)
