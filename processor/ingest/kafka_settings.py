"""How to reach a topic, and the consumers that read it: the live one and the one that replays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from producer.kafka_properties import kafka_settings
from producer.throttle import ClientThrottle

client_logger = logging.getLogger("processor.ingest.kafka_source.client")
"""What librdkafka itself has to say, each trouble once a minute."""
client_logger.addFilter(ClientThrottle())

REQUEST_TIMEOUT = 3.0
"""Seconds until a question to the broker counts as unanswered."""

_GUARANTEES: Mapping[str, tuple[str, ...]] = {
    "enable.auto.commit": ("false",),
    "enable.auto.offset.store": ("false",),
    "auto.offset.reset": ("error",),
    "enable.partition.eof": ("true",),
}
"""What reading rests on: a properties file may say the same, and nothing else."""
_DEFAULTS: Mapping[str, str | int] = {
    "client.id": "blendstream",
    "fetch.queue.backoff.ms": 10,
    "reconnect.backoff.max.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 10_000,
}
GONE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._FATAL,
    }
)
"""Errors after which a consumer has to begin anew."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where the events are, and how to get at them.

    Attributes:
        bootstrap_servers: `host:port`, several separated by commas.
        group_id: what lag tools know this processor by; it joins no group.
        properties: further settings of librdkafka, such as those of TLS and SASL.
        dead_letter_topic: where undecodable records are copied; nowhere if empty.
        repair_window: seconds for which the log should keep records at least.
    """

    bootstrap_servers: str
    topic: str
    group_id: str = "blendstream"
    properties: Mapping[str, str] = field(default_factory=dict)
    dead_letter_topic: str = ""
    repair_window: float = 3600.0

    def connection(self) -> dict[str, Any]:
        """How to reach the brokers, as librdkafka takes it."""
        return {**self.properties, "bootstrap.servers": self.bootstrap_servers}

    def new_consumer(
        self, on_error: Callable[[KafkaError], None], overrides: Mapping[str, str] | None = None
    ) -> Consumer:
        """A consumer without partitions.

        Raises:
            ValueError: a property would undo what reading rests on.
            KafkaException: librdkafka refuses a setting.
        """
        properties = {**self.properties, **(overrides or {})}
        chosen = kafka_settings(self.bootstrap_servers, properties, _GUARANTEES, _DEFAULTS)
        return Consumer({**chosen, "group.id": self.group_id, "error_cb": on_error}, logger=client_logger)


def reason_of(error: KafkaException) -> str:
    """What a client's exception says."""
    said: str = error.args[0].str()
    return said
