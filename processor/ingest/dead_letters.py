"""Records that cannot be decoded: counted, told of, and copied to a topic of their own if there is one.

Their place in the stream shows up as a gap, so nothing is lost in silence; this is for whoever has to find
out why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from processor.ingest.kafka_settings import client_logger
from producer.throttle import Throttle

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT = 2.0
"""Seconds to wait for copies under way."""


class DeadLetters:
    """Keeps account of undecodable records.

    Args:
        topic: where they are copied, with headers that say why beside their own; nowhere if empty.
        settings: of the producer, as librdkafka takes them.

    Attributes:
        count: records so far.
        lost: copies that could not be delivered.
    """

    def __init__(self, topic: str, settings: Mapping[str, Any]) -> None:
        self.count = 0
        self.lost = 0
        self._topic = topic
        self._throttle = Throttle()
        # The thread that reads and the one that writes checkpoints both hear of deliveries.
        self._counting = threading.Lock()
        self._producer: Producer | None = None
        if topic:
            self._producer = Producer({**settings, "error_cb": self._on_error}, logger=client_logger)

    def add(self, message: Message, reason: str) -> None:
        """Count a record, log it unless its emitter was logged within the minute, and copy it."""
        self.count += 1
        key = message.key() or b""
        if self._throttle.due(key):
            place = f"{message.topic()}[{message.partition()}]@{message.offset()}"
            logger.warning(
                "skipped the record %s of %r, which cannot be decoded: %s", place, key[:200], reason
            )
        if self._producer is not None:
            self._copy(self._producer, message, reason)

    def flush(self) -> int:
        """Wait a moment for copies under way; how many still are."""
        return self._producer.flush(FLUSH_TIMEOUT) if self._producer is not None else 0

    def close(self) -> None:
        """Wait a moment for copies under way, and count those as lost that still are."""
        left = self.flush()
        with self._counting:
            self.lost += left

    def _copy(self, producer: Producer, message: Message, reason: str) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            *(message.headers() or []),
            ("blendstream.reason", reason.encode("utf-8", "replace")[:1000]),
            ("blendstream.topic", str(message.topic()).encode()),
            ("blendstream.partition", str(message.partition()).encode()),
            ("blendstream.offset", str(message.offset()).encode()),
        ]
        try:
            producer.produce(
                self._topic, message.value(), message.key(), headers=headers, on_delivery=self._delivered
            )
        except (BufferError, KafkaException) as error:
            self._note_lost(str(error))
        producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._note_lost(error.str())

    def _note_lost(self, reason: str) -> None:
        with self._counting:
            self.lost += 1
            first = self.lost == 1
        if first:
            logger.warning("topic %r did not take a dead letter: %s", self._topic, reason)

    def _on_error(self, error: KafkaError) -> None:
        if self._throttle.due(error.code()):
            logger.warning("the producer of dead letters reports: %s", error)
