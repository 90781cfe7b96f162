"""From a record to its batches: whose they are, when they were, and how many to take at once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from processor.batch import EventBatch
from processor.ingest.decode import DecodeError, Decoder
from processor.ingest.records import DRAIN_BYTES, DRAIN_RECORDS, Drain, RecordReader, position_of
from processor.ingest.source import Position
from producer.wire import encode_rows
from tests.processor.ingest.messages import message
from tests.processor.ingest.reading import batch


class Broken(Decoder):
    """One with a fault of its own."""

    def decode(self, value: bytes, *, record_time: float) -> list[EventBatch]:
        raise ZeroDivisionError("nobody foresaw this")


@pytest.fixture
def reader() -> RecordReader:
    return RecordReader(Decoder(256), clock=lambda: 77.0)


def test_a_record_gives_its_batches_in_order_with_its_own_time(reader: RecordReader) -> None:
    read = reader.read(message(encode_rows([batch(1), batch(2, ts=9.0)])))
    assert [(each.seq, each.event_time) for each in read] == [(1, 1.5), (2, 9.0)]


def test_a_record_without_a_time_is_of_now(reader: RecordReader) -> None:
    (read,) = reader.read(message(encode_rows([batch(1)]), milliseconds=None))
    assert read.event_time == 77.0


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]"])
def test_a_record_that_holds_no_envelope_is_refused(reader: RecordReader, value: bytes | None) -> None:
    with pytest.raises(DecodeError):
        reader.read(message(value))


def test_a_key_that_names_another_emitter_is_refused(reader: RecordReader) -> None:
    with pytest.raises(DecodeError, match="must be the record's key, b'server-2', got 'server-1'") as caught:
        reader.read(message(encode_rows([batch(1)]), b"server-2"))
    assert caught.value.loc == ("batches", 0, "instance_id")


@pytest.mark.parametrize("key", [b"server-1", None])
def test_batches_of_two_emitters_in_one_record_are_refused(reader: RecordReader, key: bytes | None) -> None:
    with pytest.raises(DecodeError, match="server-1") as caught:
        reader.read(message(encode_rows([batch(1), batch(1, "server-2")]), key))
    assert caught.value.loc == ("batches", 1, "instance_id")


def test_a_record_without_a_key_may_be_anyones(reader: RecordReader) -> None:
    (read,) = reader.read(message(encode_rows([batch(1, "server-2")]), key=None))
    assert read.instance_id == "server-2"


def test_an_empty_envelope_gives_nothing_whatever_its_key(reader: RecordReader) -> None:
    assert reader.read(message(b'{"batches": []}', b"anyone")) == []


def test_a_fault_of_the_decoder_costs_the_record_and_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(DecodeError, match="nobody foresaw this"):
        RecordReader(Broken(256)).read(message(b"{}"))
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize(
    ("where", "expected"), [({}, Position(0, 0)), ({"partition": 3, "offset": 9}, Position(3, 9))]
)
def test_a_record_stands_where_its_message_says(where: dict[str, Any], expected: Position) -> None:
    assert position_of(message(b"", **where)) == expected


def test_small_records_are_taken_many_at_once_and_large_ones_few() -> None:
    small, large = Drain(), Drain()
    for _ in range(200):
        small.saw(message(b"x" * 100))
        large.saw(message(b"x" * (DRAIN_BYTES // 4)))
    assert small.size() == DRAIN_RECORDS
    assert large.size() in (3, 4)


def test_one_record_is_always_taken() -> None:
    drain = Drain()
    for _ in range(200):
        drain.saw(message(b"x" * (4 * DRAIN_BYTES)))
    assert drain.size() == 1
