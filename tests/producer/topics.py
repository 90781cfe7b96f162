"""What is in a topic, and how a producer is made to fail for good."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from producer.events import CacheEventBatch
from producer.wire import decode


def records(bootstrap: str, topic: str) -> list[Message]:
    """All records of a topic, in order within each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    try:
        unfinished = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unfinished])
        found: list[Message] = []
        deadline = time.monotonic() + 20
        while unfinished:
            assert time.monotonic() < deadline, f"partitions {unfinished} have no end"
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unfinished.discard(message.partition())
        return found
    finally:
        consumer.close()


def batches_in(messages: list[Message]) -> list[CacheEventBatch]:
    return [one for message in messages for one in decode(message.value() or b"")]


def fail_for_good(producer: confluent_kafka.Producer) -> None:
    """Raise a fatal error inside librdkafka, by a function it has for this and Python does not show."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*.so*"))))
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__)
    assert library.rd_kafka_test_fatal_error(handle, 45, b"as if the order was lost") == 0
