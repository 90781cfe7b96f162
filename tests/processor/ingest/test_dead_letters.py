"""Undecodable records: what is told of them, and where their copies go."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import Consumer, TopicPartition

from processor.ingest.dead_letters import DeadLetters
from tests.brokers import RunningBroker
from tests.processor.ingest.messages import message


@pytest.fixture
def letters() -> DeadLetters:
    return DeadLetters("", {})


def test_every_record_counts_and_each_emitter_is_logged_once_with_its_place(
    letters: DeadLetters, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        letters.add(message(b"{", partition=2, offset=9), "is cut off")
        letters.add(message(b"{", partition=2, offset=10), "is cut off")
        letters.add(message(b"{", b"server-2"), "is cut off")
    assert letters.count == 3
    first, second = [record.getMessage() for record in caplog.records]
    assert "events[2]@9 of b'server-1'" in first and "is cut off" in first
    assert "b'server-2'" in second


def test_closing_waits_for_the_copies_under_way(kafka_broker: RunningBroker, topic: str) -> None:
    letters = DeadLetters(topic, {"bootstrap.servers": kafka_broker.bootstrap})
    letters.add(message(b"{", partition=2, offset=9), "is cut \udc80 off")
    letters.close()
    assert letters.lost == 0
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": topic})
    try:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 1)
    finally:
        consumer.close()


def test_what_the_producer_has_no_room_for_is_lost_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:9", "queue.buffering.max.messages": 1, "log_level": 0}
    letters = DeadLetters("dead", settings)
    with caplog.at_level(logging.WARNING):
        for offset in range(3):
            letters.add(message(b"{", offset=offset), "")
    assert letters.lost == 2
    assert len([r for r in caplog.records if "did not take a dead letter" in r.getMessage()]) == 1
