"""The carrier answers for every record, when it is asked to, and after one not taken takes none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from producer.events import CacheEventBatch, EventType, Tier
from producer.sinks.kafka_carrier import KafkaCarrier
from producer.sinks.protocol import Answer
from producer.wire import Wire, decode
from tests.brokers import RunningBroker
from tests.producer.topics import fail_for_good, records
from tests.waiting import wait_for

NOWHERE = "127.0.0.1:1"
"""A port that nobody listens on."""


class Answers(dict[int, list[Answer]]):
    """What the carrier said of each record."""

    def send(self, carrier: KafkaCarrier, *numbers: int, value: bytes | None = None) -> list[bool]:
        return [self._send(carrier, number, value) for number in numbers]

    def _send(self, carrier: KafkaCarrier, number: int, value: bytes | None) -> bool:
        content = str(number).encode() if value is None else value
        return carrier.send(b"server-1", content, self.setdefault(number, []).append)


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def nowhere() -> Iterator[KafkaCarrier]:
    with closing(KafkaCarrier(NOWHERE, properties={"queue.buffering.max.messages": "3"})) as carrier:
        yield carrier


@pytest.mark.parametrize("topic", [4], indirect=True)
def test_records_arrive_in_order_on_the_partition_and_are_answered_for_only_when_asked(
    kafka_broker: RunningBroker, topic: str, answers: Answers
) -> None:
    with closing(KafkaCarrier(kafka_broker.bootstrap, topic, partition=2)) as carrier:
        assert all(answers.send(carrier, *range(50)))
        wait_for(lambda: len(records(kafka_broker.bootstrap, topic)) == 50, 20)
        assert not any(answers.values()), "the broker has them, and nobody has asked"
        wait_for(lambda: carrier.serve(0.05) and all(answers.values()), 20)
    assert answers == {number: [Answer.TAKEN] for number in range(50)}
    found = records(kafka_broker.bootstrap, topic)
    assert [(one.partition(), one.key(), one.value()) for one in found] == [
        (2, b"server-1", str(number).encode()) for number in range(50)
    ]


@pytest.mark.parametrize("wire", Wire)
def test_a_value_is_one_batch_in_the_carriers_form(wire: Wire) -> None:
    batch = CacheEventBatch("server-1", 7, 1, EventType.ACCESS, Tier.L1, "", [], ts=1.0)
    with closing(KafkaCarrier(NOWHERE, wire=wire)) as carrier:
        assert carrier.wire is wire
        assert decode(carrier.encode(batch)) == [batch]


def test_a_full_queue_takes_no_record_and_says_nothing_of_it(nowhere: KafkaCarrier, answers: Answers) -> None:
    assert answers.send(nowhere, 1, 2, 3, 4) == [True, True, True, False]
    assert nowhere.serve(0)
    assert not any(answers.values())


def test_a_reset_answers_for_all_that_is_queued_and_makes_room(
    nowhere: KafkaCarrier, answers: Answers
) -> None:
    answers.send(nowhere, 1, 2, 3)
    nowhere.reset()
    assert answers == {number: [Answer.FAILED] for number in (1, 2, 3)}
    assert answers.send(nowhere, 4, 5, 6) == [True, True, True]
    assert nowhere.serve(0)


def test_a_close_answers_for_all_that_is_queued(answers: Answers) -> None:
    carrier = KafkaCarrier(NOWHERE)
    answers.send(carrier, 1, 2)
    carrier.close()
    assert answers == {1: [Answer.FAILED], 2: [Answer.FAILED]}


def test_after_a_record_beyond_the_limit_none_is_taken_until_a_reset(
    nowhere: KafkaCarrier, answers: Answers
) -> None:
    assert answers.send(nowhere, 1, value=bytes(2_000_000)) == [True]
    assert answers[1] == [Answer.REFUSED]
    assert answers.send(nowhere, 2) == [False]
    assert not nowhere.serve(0)
    nowhere.reset()
    assert answers.send(nowhere, 2) == [True]
    assert nowhere.serve(0)
    assert answers == {1: [Answer.REFUSED], 2: []}


def test_a_producer_that_failed_for_good_fails_the_next_record_but_does_not_refuse_it(
    nowhere: KafkaCarrier, answers: Answers
) -> None:
    fail_for_good(nowhere._producer)
    assert answers.send(nowhere, 1, 2) == [True, False]
    assert answers == {1: [Answer.FAILED], 2: []}
    assert not nowhere.serve(0)
    nowhere.reset()
    assert answers.send(nowhere, 1) == [True]


def test_serving_tells_that_the_producer_failed_for_good(nowhere: KafkaCarrier, answers: Answers) -> None:
    fail_for_good(nowhere._producer)
    wait_for(lambda: not nowhere.serve(0.05), 10)
    assert answers.send(nowhere, 1) == [False]
    assert answers == {1: []}


TWO_WARNINGS = """
import logging
from producer.sinks.kafka_carrier import KafkaCarrier
logging.basicConfig(level=logging.DEBUG)
carrier = KafkaCarrier("127.0.0.1:1", properties={"fetch.wait.max.ms": "500"})
carrier.serve(1)
carrier.close()
"""
"""In a process of its own: librdkafka's lines are told once a minute a process."""


def test_that_a_setting_of_ours_is_new_is_not_told_though_warnings_are() -> None:
    run = subprocess.run([sys.executable, "-c", TWO_WARNINGS], capture_output=True, text=True, check=True)
    assert "fetch.wait.max.ms is a consumer property" in run.stderr
    assert "enable.gapless.guarantee" not in run.stderr
