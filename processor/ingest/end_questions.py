"""Asks where partitions end without waiting for the answers, so that a silent leader holds nobody up.

Each leader is asked for its own partitions apart, and again only once it has answered or its time is up. An
end is one of the moment of its question, since records may have come before the answer did.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import KafkaException

from processor.ingest.kafka_settings import reason_of


class Answer(NamedTuple):
    """What came of the question where a partition ends.

    Attributes:
        end: None if its leader did not tell.
        asked: when it was asked, in seconds.
        failure: why it was not told, empty if it was.
    """

    partition: int
    end: int | None
    asked: float
    failure: str = ""


@dataclass(slots=True)
class _Question:
    answer: Future[int]
    asked: float
    void: bool = False


class EndQuestions:
    """The questions under way. One thread uses them.

    Args:
        request: asks where partitions end, see `TopicInspector.request_ends`.
        clock: seconds, for when a question was asked.
    """

    def __init__(
        self,
        request: Callable[[Iterable[int]], dict[int, Future[int]]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._request = request
        self._clock = clock
        self._under_way: dict[int, _Question] = {}

    def ask(self, partitions: Iterable[int]) -> None:
        """Ask for those that are not asked for already."""
        wanted = [partition for partition in partitions if partition not in self._under_way]
        if wanted:
            asked = self._clock()
            for partition, answer in self._request(wanted).items():
                self._under_way[partition] = _Question(answer, asked)

    def void(self) -> None:
        """The answers to what was asked so far do not count any more."""
        for question in self._under_way.values():
            question.void = True

    def answers(self) -> Iterator[Answer]:
        """What came since the last look."""
        for partition, question in list(self._under_way.items()):
            if question.answer.done():
                del self._under_way[partition]
                if not question.void:
                    yield _answer_of(partition, question)


def _answer_of(partition: int, question: _Question) -> Answer:
    try:
        return Answer(partition, question.answer.result(), question.asked)
    except KafkaException as error:
        return Answer(partition, None, question.asked, reason_of(error))
