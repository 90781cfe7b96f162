"""Records as a consumer hands them out, made without a broker."""

from __future__ import annotations

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message


def message(
    value: bytes | None,
    key: bytes | None = b"server-1",
    *,
    partition: int = 0,
    offset: int = 0,
    milliseconds: int | None = 1_500,
) -> Message:
    """A record of the topic `events`; without `milliseconds` it has no timestamp."""
    kind = TIMESTAMP_NOT_AVAILABLE if milliseconds is None else TIMESTAMP_CREATE_TIME
    return Message(
        topic="events",
        partition=partition,
        offset=offset,
        key=key,
        value=value,
        timestamp=(kind, milliseconds or 0),
    )
