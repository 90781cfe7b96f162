from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from deploy.broker import create_topic, delete_topic
from tests.brokers import RunningBroker
from tests.waiting import wait_for


@pytest.mark.parametrize("topic", [3], indirect=True)
def test_a_new_topic_takes_and_gives_records_on_every_partition(
    kafka_broker: RunningBroker, topic: str
) -> None:
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap, "enable.idempotence": True, "acks": "all"}
    )
    for partition in range(3):
        producer.produce(topic, value=b"record %d" % partition, key=b"emitter", partition=partition)
    assert producer.flush(20) == 0

    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
    found: dict[int | None, bytes | None] = {}

    def all_read() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found[message.partition()] = message.value()
        return len(found) == 3

    wait_for(all_read, timeout=20, what="a record from each partition")
    consumer.close()
    assert found == {partition: b"record %d" % partition for partition in range(3)}


def test_a_topic_can_be_made_only_once(kafka_broker: RunningBroker, topic: str) -> None:
    with pytest.raises(KafkaException, match=r"already exists|TOPIC_ALREADY_EXISTS"):
        create_topic(kafka_broker.bootstrap, topic)


def test_a_deleted_topic_is_gone(kafka_broker: RunningBroker) -> None:
    create_topic(kafka_broker.bootstrap, "short-lived")
    delete_topic(kafka_broker.bootstrap, "short-lived")
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    wait_for(lambda: "short-lived" not in admin.list_topics(timeout=5).topics, what="the topic gone")
