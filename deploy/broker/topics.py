"""Making and removing topics. A topic is made once every partition can be written to."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.broker.broker import POLL_INTERVAL, BrokerNotReady

TIMEOUT = 30.0  # seconds


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Make `topic` and wait until each of its partitions has a leader; KafkaException where it exists."""
    admin = _admin(bootstrap)
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    admin.create_topics([new], operation_timeout=TIMEOUT)[topic].result(TIMEOUT)
    deadline = time.monotonic() + TIMEOUT
    while not _has_leaders(admin, topic, partitions):
        if time.monotonic() > deadline:
            raise BrokerNotReady(
                f"topic {topic!r} has no leader for all of its {partitions} partitions after {TIMEOUT:g} s"
            )
        time.sleep(POLL_INTERVAL)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Remove `topic` with all of its records."""
    admin = _admin(bootstrap)  # held until the answer is here: a client that goes takes its requests with it
    admin.delete_topics([topic], operation_timeout=TIMEOUT)[topic].result(TIMEOUT)


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def _has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    try:
        found = admin.list_topics(topic, timeout=5).topics[topic].partitions
    except KafkaException:
        return False
    return len(found) == partitions and all(partition.leader >= 0 for partition in found.values())
