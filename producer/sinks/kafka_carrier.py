"""Records for a topic, each with word of its delivery: what a spool sends by.

A record waits for the broker as long as it takes. One that is not taken ends the producer, and with it all
records behind it (librdkafka's gapless guarantee), so that nothing overtakes it; the spool then begins again
with that record, on a new producer. What the old one had got to the broker unconfirmed is there twice, in the
worst case, and readers drop what they have seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from producer.events import CacheEventBatch
from producer.kafka_properties import kafka_settings
from producer.sinks.kafka_producer import DEFAULT_TOPIC, DEFAULTS, GUARANTEES, give_up, new_producer
from producer.sinks.protocol import Answer
from producer.throttle import ClientThrottle
from producer.wire import Wire, encode_batch, envelope

CARRIER_DEFAULTS: Final[Mapping[str, str | int]] = {
    **DEFAULTS,
    # What waits, waits on disk; the queue need only bridge the way to the broker and back.
    "queue.buffering.max.kbytes": 16 * 1024,
    "reconnect.backoff.max.ms": 2_000,
}
CARRIER_GUARANTEES: Final[Mapping[str, tuple[str, ...]]] = {
    **GUARANTEES,
    "message.timeout.ms": ("0",),
    "delivery.timeout.ms": ("0",),
    "enable.gapless.guarantee": ("true",),
}

_NEVER_TAKEN: Final = frozenset(
    (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD)
)

logger = logging.getLogger(__name__)
logger.addFilter(ClientThrottle())
# librdkafka warns of this setting with every producer, for being new.
logger.addFilter(lambda record: "enable.gapless.guarantee is experimental" not in record.getMessage())


class KafkaCarrier:
    """Carries records to a topic; arguments and errors are those of `KafkaSink`.

    `message.timeout.ms` cannot be set: the spool's bound is what limits waiting.
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
        self._settings = kafka_settings(
            bootstrap_servers, properties or {}, CARRIER_GUARANTEES, CARRIER_DEFAULTS
        )
        self._producer = new_producer(self._settings, logger)
        self._failed = False

    @property
    def wire(self) -> Wire:
        """The form of its records."""
        return self._wire

    def encode(self, batch: CacheEventBatch) -> bytes:
        """The value of a batch's record."""
        return envelope((encode_batch(batch, self._wire),))

    def send(self, key: bytes, value: bytes, on_answer: Callable[[Answer], None]) -> bool:
        """Queue a record; False where the queue is full, or one before it was not taken."""

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            on_answer(self._answer(error))

        if self._failed:
            return False
        try:
            self._producer.produce(
                self._topic, value, key, partition=self._partition, on_delivery=on_delivery
            )
        except BufferError:
            return False
        except KafkaException as error:
            on_answer(self._answer(error.args[0]))
        return True

    def serve(self, timeout: float) -> bool:
        """Give the answers that are there; False where only a `reset` helps."""
        try:
            self._producer.poll(timeout)
        except KafkaException as error:
            logger.debug("the producer of topic %r failed for good: %s", self._topic, error)
            self._failed = True
        return not self._failed

    def reset(self) -> None:
        """Give up what is queued, answering for all of it, and start another producer."""
        give_up(self._producer)
        self._producer = new_producer(self._settings, logger)
        self._failed = False

    def close(self) -> None:
        """Give up what is queued, answering for all of it."""
        give_up(self._producer)

    def _answer(self, error: KafkaError | None) -> Answer:
        if error is None:
            return Answer.TAKEN
        self._failed = True
        logger.debug("topic %r did not take a record: %s", self._topic, error)
        return Answer.REFUSED if error.code() in _NEVER_TAKEN else Answer.FAILED
