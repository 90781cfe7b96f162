"""Batches as Kafka records, one a record, keyed by `instance_id`.

The producer is idempotent and waits for all replicas, so that retries neither reorder nor double the
stream, and the key keeps one emitter's batches on one partition. `publish` only queues; what the broker has
not taken within `message.timeout.ms`, or what finds the bounded queue full, is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from producer.events import CacheEventBatch
from producer.kafka_properties import kafka_settings
from producer.sinks.kafka_producer import DEFAULT_TOPIC, DEFAULTS, GUARANTEES, give_up, new_producer
from producer.sinks.protocol import PublishError
from producer.throttle import ClientThrottle
from producer.wire import Wire, encode_batch, envelope

CLOSE_TIMEOUT: Final = 5.0
"""Seconds that `close` waits for records still queued."""

logger = logging.getLogger(__name__)
logger.addFilter(ClientThrottle())


class KafkaSink:
    """Produces batches to a topic.

    Args:
        bootstrap_servers: `host:port`, several separated by commas.
        partition: the partition all records go to; by the key if None.
        properties: librdkafka settings as strings, as `read_properties` gives them.

    Raises:
        ValueError: librdkafka does not know a property or its value, or one would undo idempotence or
        `acks=all`.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str = DEFAULT_TOPIC,
        *,
        wire: Wire = Wire.COLUMNS,
        partition: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._topic = topic
        self._wire = wire
        self._partition = -1 if partition is None else partition
        self._settings = kafka_settings(bootstrap_servers, properties or {}, GUARANTEES, DEFAULTS)
        self._producer = new_producer(self._settings, logger)
        self._lock = threading.Lock()
        self._delivered = 0
        self._dropped = 0
        self._closed = False

    @property
    def wires(self) -> frozenset[Wire]:
        """The form of its records."""
        return frozenset((self._wire,))

    @property
    def delivered(self) -> int:
        """Batches that the broker has acknowledged."""
        return self._delivered

    @property
    def dropped(self) -> int:
        """Batches refused at the queue or given up on later."""
        return self._dropped

    def publish(self, batches: Sequence[CacheEventBatch]) -> None:
        """Queue batches; raises `PublishError` once all were tried."""
        refused, cause = 0, None
        for batch in batches:
            try:
                self._produce(batch)
            except (BufferError, KafkaException, ValueError) as error:
                refused, cause = refused + 1, error
            self._serve()
        if cause is not None:
            with self._lock:
                self._dropped += refused
            raise PublishError(
                f"topic {self._topic!r} did not take {refused} of {len(batches)} batches: {cause}", refused
            ) from cause

    def flush(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until the broker has answered for every record."""
        try:
            return int(self._producer.flush(timeout)) == 0
        except KafkaException as error:
            self._replace(error)
            return False

    def close(self) -> None:
        """Wait a few seconds for records still queued; what remains is dropped, counted and logged."""
        if not self._closed:
            self._closed = True
            self._retire(CLOSE_TIMEOUT)

    def _produce(self, batch: CacheEventBatch) -> None:
        value = envelope((encode_batch(batch, self._wire),))
        try:
            self._queue(batch.instance_id, value)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._FATAL:
                raise
            self._replace(error)
            self._queue(batch.instance_id, value)

    def _queue(self, instance_id: str, value: bytes) -> None:
        self._producer.produce(
            self._topic,
            value,
            instance_id.encode(),
            partition=self._partition,
            on_delivery=self._on_delivery,
        )

    def _serve(self) -> None:
        try:
            self._producer.poll(0)
        except KafkaException as error:
            self._replace(error)

    def _replace(self, error: KafkaException) -> None:
        # librdkafka ends an idempotent producer for good once it cannot vouch for the order any more. What
        # was lost shows to readers as a hole; the stream has to go on.
        logger.error("the producer of topic %r failed for good, starting another: %s", self._topic, error)
        self._retire(0.0)
        self._producer = new_producer(self._settings, logger)

    def _retire(self, timeout: float) -> None:
        try:
            left = self._producer.flush(timeout)
        except KafkaException:  # a fatal error, in place of a result
            left = len(self._producer)
        if left:
            give_up(self._producer)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        with self._lock:
            if error is None:
                self._delivered += 1
                return
            self._dropped += 1
            first = self._dropped == 1
        # One line tells of an outage; the counter tells of its size.
        level = logging.WARNING if first else logging.DEBUG
        logger.log(level, "topic %r lost a batch of %r: %s", self._topic, message.key(), error)
