"""Records on a real broker: all there, once, in order, under the emitter's key; and what if there is none."""

from __future__ import annotations

import time

import pytest

from producer.emitter import CacheEventEmitter
from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier
from producer.sinks.kafka import KafkaSink
from producer.sinks.protocol import PublishError
from producer.wire import Wire
from tests.brokers import RunningBroker
from tests.producer.topics import batches_in, fail_for_good, records
from tests.waiting import wait_for

NOWHERE = "127.0.0.1:1"
"""A port that nobody listens on."""


def batch(seq: int, instance_id: str = "server-1", tokens: int = 4) -> CacheEventBatch:
    entry = CacheEventEntry(ObjectKey(seq.to_bytes(32, "big"), "llama", 1), 10, range(tokens), 0)
    return CacheEventBatch(instance_id, 7, seq, EventType.STORE, Tier.L1, "dram", [entry], ts=float(seq))


@pytest.mark.parametrize("wire", Wire)
def test_every_batch_arrives_once_in_order_under_the_emitters_key(
    kafka_broker: RunningBroker, topic: str, wire: Wire
) -> None:
    sink = KafkaSink(kafka_broker.bootstrap, topic, wire=wire)
    sent = [batch(seq) for seq in range(1, 301)]
    for first in range(0, 300, 50):
        sink.publish(sent[first : first + 50])
    assert sink.flush(20)
    assert (sink.delivered, sink.dropped) == (300, 0)
    sink.close()
    found = records(kafka_broker.bootstrap, topic)
    assert batches_in(found) == sent
    assert {message.key() for message in found} == {b"server-1"}


@pytest.mark.parametrize("topic", [4], indirect=True)
def test_one_emitters_batches_share_a_partition(kafka_broker: RunningBroker, topic: str) -> None:
    sink = KafkaSink(kafka_broker.bootstrap, topic)
    names = [f"server-{i}" for i in range(8)]
    sink.publish([batch(seq, name) for seq in range(1, 6) for name in names])
    sink.close()
    found = records(kafka_broker.bootstrap, topic)
    assert len({(message.key(), message.partition()) for message in found}) == len(names)
    for name in names:
        mine = [message for message in found if message.key() == name.encode()]
        assert [one.seq for one in batches_in(mine)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("topic", [4], indirect=True)
def test_a_fixed_partition_takes_all_records(kafka_broker: RunningBroker, topic: str) -> None:
    sink = KafkaSink(kafka_broker.bootstrap, topic, partition=3)
    sink.publish([batch(seq, f"server-{seq}") for seq in range(1, 9)])
    sink.close()
    assert {message.partition() for message in records(kafka_broker.bootstrap, topic)} == {3}


def test_a_batch_beyond_the_record_limit_is_refused_and_the_others_arrive(
    kafka_broker: RunningBroker, topic: str
) -> None:
    sink = KafkaSink(kafka_broker.bootstrap, topic)
    with pytest.raises(PublishError, match="did not take 1 of 3 batches") as caught:
        sink.publish([batch(1), batch(2, tokens=400_000), batch(3)])
    assert caught.value.dropped == 1
    sink.close()
    assert (sink.delivered, sink.dropped) == (2, 1)
    assert [one.seq for one in batches_in(records(kafka_broker.bootstrap, topic))] == [1, 3]


def test_a_large_store_reaches_the_broker_in_pieces_that_it_takes(
    kafka_broker: RunningBroker, topic: str
) -> None:
    sink = KafkaSink(kafka_broker.bootstrap, topic)
    keys = [ObjectKey(i.to_bytes(32, "big"), "llama", 1) for i in range(1_500)]
    with CacheEventEmitter(sink, "server-1", 1) as emitter:
        emitter.on_tokens(
            [key.chunk_hash for key in keys], [range(i, i + 256) for i in range(1_500)], [0] * 1_500
        )
        emitter.on_store(Tier.L1, "dram", keys, [10] * 1_500)
    assert sink.dropped == 0
    found = batches_in(records(kafka_broker.bootstrap, topic))
    assert sink.delivered > 1
    assert [one.seq for one in found] == list(range(1, sink.delivered + 1))
    entries = [entry for one in found for entry in one.entries]
    assert [entry.key for entry in entries] == keys
    assert all(entry.token_ids.tolist() == list(range(i, i + 256)) for i, entry in enumerate(entries))


def test_the_stream_goes_on_after_the_producer_failed_for_good(
    kafka_broker: RunningBroker, topic: str
) -> None:
    sink = KafkaSink(kafka_broker.bootstrap, topic)
    sink.publish([batch(1)])
    assert sink.flush(20)
    fail_for_good(sink._producer)
    sink.publish([batch(2), batch(3)])
    sink.close()
    assert (sink.delivered, sink.dropped) == (3, 0)
    assert [one.seq for one in batches_in(records(kafka_broker.bootstrap, topic))] == [1, 2, 3]


def test_without_a_broker_batches_wait_and_are_dropped_and_counted_in_the_end() -> None:
    sink = KafkaSink(NOWHERE, "t", properties={"message.timeout.ms": "200"})
    begun = time.monotonic()
    sink.publish([batch(seq) for seq in range(1, 11)])
    assert time.monotonic() - begun < 5
    assert not sink.flush(0)
    wait_for(lambda: sink.flush(0.05), what="the messages to time out")
    assert (sink.delivered, sink.dropped) == (0, 10)


def test_a_full_queue_drops_at_once_and_says_how_many() -> None:
    sink = KafkaSink(NOWHERE, "t", properties={"queue.buffering.max.messages": "2"})
    with pytest.raises(PublishError, match="did not take 3 of 5 batches") as caught:
        sink.publish([batch(seq) for seq in range(1, 6)])
    assert caught.value.dropped == 3


def test_what_is_queued_at_the_close_is_counted_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producer.sinks.kafka.CLOSE_TIMEOUT", 0.1)
    sink = KafkaSink(NOWHERE, "t")
    sink.publish([batch(1), batch(2)])
    sink.close()
    sink.close()
    assert (sink.delivered, sink.dropped) == (0, 2)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"no.such.thing": "1"}, "no.such.thing"),
        ({"compression.type": "best"}, "compression"),
        ({"acks": "1"}, "acks must be all, got '1'"),
        ({"request.required.acks": "0"}, "request.required.acks must be all"),
        ({"enable.idempotence": "false"}, "enable.idempotence must be true"),
    ],
)
def test_a_property_that_cannot_be_or_must_not_be_is_refused(
    properties: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        KafkaSink(NOWHERE, "t", properties=properties)


def test_properties_reach_librdkafka_unless_they_only_repeat_the_guarantees() -> None:
    KafkaSink(
        NOWHERE, "t", properties={"acks": "-1", "compression.type": "lz4", "security.protocol": "SSL"}
    ).close()
