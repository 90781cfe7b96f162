from __future__ import annotations

import logging
import time

import pytest
from confluent_kafka import Consumer

from producer import throttle
from producer.throttle import ClientThrottle, Throttle
from tests.clock import Clock


def test_what_was_due_is_due_again_after_the_interval_and_not_before() -> None:
    clock = Clock()
    once_a_minute = Throttle(60.0, clock)
    assert once_a_minute.due("disk")
    assert not once_a_minute.due("disk")
    clock.now += 59.0
    assert not once_a_minute.due("disk"), "asking in between puts nothing off"
    clock.now += 1.0
    assert once_a_minute.due("disk")
    assert not once_a_minute.due("disk")


def test_one_trouble_does_not_hide_another() -> None:
    once_a_minute = Throttle(60.0, Clock())
    assert once_a_minute.due("disk")
    assert once_a_minute.due("sink")
    assert once_a_minute.due()


def test_what_is_remembered_is_bounded() -> None:
    once_a_minute = Throttle(60.0, Clock())
    for key in range(throttle.MAX_KEYS):
        assert once_a_minute.due(key)
    assert not once_a_minute.due(0)
    assert once_a_minute.due("one more")
    assert once_a_minute.due(0)


def test_a_client_without_a_broker_says_so_once_however_often_it_tries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts: list[str] = []

    def attempted(record: logging.LogRecord) -> bool:
        attempts.append(record.getMessage())
        return True

    logger = logging.getLogger("tests.client_throttle")
    logger.addFilter(attempted)
    logger.addFilter(ClientThrottle())
    # Two clients one after the other, as after a failure: the second has nothing new to say.
    for count in (5, 10):
        consumer = Consumer({"bootstrap.servers": "127.0.0.1:9", "group.id": "nobody"}, logger=logger)
        deadline = time.monotonic() + 10
        while len(attempts) < count:
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        consumer.close()
    (told,) = caplog.records
    assert "Connection refused" in told.getMessage()


def test_a_client_tells_of_another_trouble_at_once_and_of_the_same_one_after_a_minute() -> None:
    clock = Clock()
    passes = ClientThrottle(Throttle(60.0, clock)).filter

    def line(text: str, client: str = "blendstream#consumer-4") -> logging.LogRecord:
        return logging.LogRecord("client", logging.ERROR, "", 0, "%s [%s] %s", ("FAIL", client, text), None)

    refused = "[thrd:a:9092/1]: a:9092/1: Connection refused (after {}ms in state CONNECT)"
    assert passes(line(refused.format(0)))
    assert not passes(line(refused.format(3), "blendstream#consumer-5"))
    assert passes(line(refused.format(0).replace("a:9092", "b:9092")))
    assert passes(line("[thrd:a:9092/1]: a:9092/1: Authentication failed (after 3ms in state AUTH)"))
    clock.now += 60.0
    assert passes(line(refused.format(0)))


def test_what_we_log_ourselves_beside_a_client_is_not_held_back() -> None:
    passes = ClientThrottle(Throttle(60.0, Clock())).filter
    ours = logging.LogRecord("client", logging.ERROR, "", 0, "topic %r failed", ("events",), None)
    assert passes(ours)
    assert passes(ours)
