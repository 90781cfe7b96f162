"""What the producers of batches have in common, with a spool before them or without.

Each is idempotent and waits for all replicas, so that retries neither reorder nor double a stream. One that
has failed for good cannot be mended: it is given up, and another takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaException, Producer

DEFAULT_TOPIC: Final = "lmcache-cache-events"

DEFAULTS: Final[Mapping[str, str | int]] = {
    "client.id": "blendstream-emitter",
    "compression.type": "zstd",
    "linger.ms": 5,
    "queue.buffering.max.kbytes": 64 * 1024,
}
"""librdkafka settings that properties may replace; the queue's bound is of memory inside a cache server."""

GUARANTEES: Final[Mapping[str, tuple[str, ...]]] = {
    "enable.idempotence": ("true",),
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
}
"""Settings that the stream's order and completeness rest on: the values they may be given, ours first."""


def new_producer(settings: Mapping[str, str | int], log: logging.Logger) -> Producer:
    """A producer with such settings; raises ValueError where librdkafka refuses them."""
    try:
        return Producer(dict(settings), logger=log)
    except KafkaException as error:
        raise ValueError(f"librdkafka refuses the settings: {error.args[0].str()}") from error


def give_up(producer: Producer) -> None:
    """Drop all that a producer has queued or in flight; its callbacks have run on return."""
    producer.purge()
    with suppress(KafkaException):
        producer.flush(1.0)
