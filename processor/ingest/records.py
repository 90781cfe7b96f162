"""From a Kafka record to the batches in it: what live reading and replay both do with a message."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from processor.batch import EventBatch
from processor.ingest.decode import DecodeError, Decoder
from processor.ingest.source import Position

logger = logging.getLogger(__name__)


DRAIN_RECORDS = 500
"""Records taken in one call behind the first."""
DRAIN_BYTES = 1_000_000
"""Bytes that such a call should take at most: it copies them while it holds the GIL."""


class Drain:
    """How many records to take at once, going by the size of those before."""

    def __init__(self) -> None:
        self._mean_bytes = 1000.0

    def size(self) -> int:
        """So many."""
        return max(1, min(DRAIN_RECORDS, int(DRAIN_BYTES / self._mean_bytes)))

    def saw(self, message: Message) -> None:
        """A record went by."""
        self._mean_bytes += (len(message) - self._mean_bytes) / 16


class RecordReader:
    """Decodes records and checks that each is of one emitter, the one that its key names.

    Args:
        clock: seconds since the epoch, for records without a timestamp.
    """

    def __init__(self, decoder: Decoder, clock: Callable[[], float] = time.time) -> None:
        self._decoder = decoder
        self._clock = clock

    def read(self, message: Message) -> list[EventBatch]:
        """The batches of a record.

        Raises:
            DecodeError: it holds none that can be read.
        """
        try:
            batches = self._decoder.decode(message.value() or b"", record_time=self.time_of(message))
            _check_owner(batches, message.key())
        except DecodeError:
            raise
        except Exception as error:
            logger.exception("decoding failed in a way that it should not")
            raise DecodeError((), repr(error)) from error
        return batches

    def time_of(self, message: Message) -> float:
        """A record's timestamp in seconds, or now if it has none."""
        kind, milliseconds = message.timestamp()
        return self._clock() if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds / 1000


def position_of(message: Message) -> Position:
    """Where a record, or an error about one, stands."""
    partition, offset = message.partition(), message.offset()
    return Position(-1 if partition is None else partition, -1 if offset is None else offset)


def _check_owner(batches: list[EventBatch], key: bytes | None) -> None:
    """All batches of a record are of one emitter, the one that its key names if it has one."""
    for index, batch in enumerate(batches):
        if batch.instance_id != batches[0].instance_id:
            reason = f"must be that of the record's other batches, {batches[0].instance_id!r}"
            raise DecodeError(("batches", index, "instance_id"), f"{reason}, got {batch.instance_id!r}")
    if batches and key is not None and key != batches[0].instance_id.encode():
        reason = f"must be the record's key, {key[:200]!r}"
        raise DecodeError(("batches", 0, "instance_id"), f"{reason}, got {batches[0].instance_id!r}")
