"""Questions where partitions end: asked apart, once at a time, and of the moment in which they were asked."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from processor.ingest.end_questions import Answer, EndQuestions


class Asked:
    """Questions of which each is answered when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.open: list[tuple[int, Future[int]]] = []
        self.questions = EndQuestions(self._request, lambda: self.now)

    def _request(self, partitions: Iterable[int]) -> dict[int, Future[int]]:
        answers: dict[int, Future[int]] = {partition: Future() for partition in partitions}
        self.open += answers.items()
        return answers

    def answer(self, partition: int, end: int) -> None:
        self._take(partition).set_result(end)

    def fail(self, partition: int) -> None:
        self._take(partition).set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")))

    def _take(self, partition: int) -> Future[int]:
        (index,) = (i for i, (asked, _) in enumerate(self.open) if asked == partition)
        return self.open.pop(index)[1]


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_an_end_is_one_of_the_moment_of_its_question(asked: Asked) -> None:
    asked.questions.ask([0])
    asked.now = 103.0
    asked.answer(0, 7)
    assert list(asked.questions.answers()) == [Answer(0, 7, 100.0)]
    assert list(asked.questions.answers()) == []


def test_a_partition_that_does_not_answer_holds_up_no_other_and_is_not_asked_twice(asked: Asked) -> None:
    asked.questions.ask([0, 1])
    asked.answer(0, 7)
    assert list(asked.questions.answers()) == [Answer(0, 7, 100.0)]
    asked.questions.ask([0, 1])
    assert sorted(partition for partition, _ in asked.open) == [0, 1]
    asked.fail(1)
    assert list(asked.questions.answers()) == [Answer(1, None, 100.0, "no answer")]
    asked.questions.ask([1])
    assert sorted(partition for partition, _ in asked.open) == [0, 1]


def test_what_was_asked_before_touch_was_lost_does_not_count(asked: Asked) -> None:
    asked.questions.ask([0])
    asked.questions.void()
    asked.answer(0, 7)
    assert list(asked.questions.answers()) == []
    asked.questions.ask([0])
    asked.answer(0, 8)
    assert list(asked.questions.answers()) == [Answer(0, 8, 100.0)]
