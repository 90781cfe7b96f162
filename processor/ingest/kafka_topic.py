"""What the broker says of a topic: its partitions, its ends, and whether it keeps events as it must."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ListOffsetsResultInfo, OffsetSpec, ResourceType

from processor.ingest.kafka_settings import KafkaSettings, reason_of
from processor.ingest.source import Mark

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 1.0
"""Seconds that letting go of the connections takes at most."""
ANSWER_INTERVAL = 0.05
"""Seconds from one look for the answer to a commit to the next."""


class TopicError(RuntimeError):
    """The topic cannot be read as it is."""


@dataclass(frozen=True, slots=True)
class LogId:
    """Which log it is: offsets mean something within one alone. Empty where a broker does not tell."""

    cluster_id: str = ""
    topic_id: str = ""

    def differs(self, other: LogId) -> bool:
        """Whether it is another log, as far as both are known."""
        pairs = ((self.cluster_id, other.cluster_id), (self.topic_id, other.topic_id))
        return any(mine and theirs and mine != theirs for mine, theirs in pairs)

    def or_else(self, other: LogId) -> LogId:
        """With what is not known of it taken from `other`."""
        return LogId(self.cluster_id or other.cluster_id, self.topic_id or other.topic_id)

    def __str__(self) -> str:
        return f"topic id {self.topic_id or 'unknown'} on cluster {self.cluster_id or 'unknown'}"


class TopicInspector:
    """Asks the broker about the topic of `settings`. May be used from any thread.

    Attributes:
        commits: how often the group's offsets were committed, or that was refused.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        # Only errors: the reading consumer logs the same troubles, and an admin client would warn of settings
        # that concern consumers alone.
        quiet = {**settings.connection(), "log_level": 2}
        self._admin = AdminClient(quiet)
        ours = {"group.id": settings.group_id, "enable.auto.commit": False, "on_commit": self._on_commit}
        self._consumer = Consumer({**quiet, **ours})
        self._leaders: dict[int, int] = {}
        self._committing = threading.Lock()
        self._refusals: dict[frozenset[tuple[int, int]], str] = {}
        self._topic = settings.topic
        self._group_id = settings.group_id
        self.commits = {"committed": 0, "refused": 0}
        self._repair_window = settings.repair_window
        self._warned = False

    def close(self) -> None:
        """Let go of the connections. May be called twice.

        A commit that a hanging broker did not answer would hold this up for a minute, so it is left behind.
        """
        closing = threading.Thread(target=self._consumer.close, name="kafka-close", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT)

    def partitions(self, timeout: float) -> list[int]:
        """The topic's partitions, ascending; none if it does not exist. It is not created by asking.

        Raises:
            KafkaException: the broker does not answer, or does not let us know.
        """
        found = self._consumer.list_topics(self._topic, timeout=timeout).topics.get(self._topic)
        if found is None:
            return []
        if found.error is not None:
            if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return []
            raise KafkaException(found.error)
        self._leaders = {partition: told.leader for partition, told in found.partitions.items()}
        return sorted(found.partitions)

    def bounds(self, partition: int, timeout: float) -> tuple[int, int]:
        """The earliest offset of a partition, and its end.

        Raises:
            KafkaException: the broker does not answer.
            TopicError: it does not know yet.
        """
        bounds = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=timeout)
        if bounds is None:
            raise TopicError(f"the bounds of partition {partition} are not known yet")
        return bounds[0], bounds[1]

    def all_bounds(self, timeout: float) -> dict[int, tuple[int, int]]:
        """The bounds of every partition; fails as `bounds` does."""
        return {partition: self.bounds(partition, timeout) for partition in self.partitions(timeout)}

    def request_ends(self, partitions: Iterable[int], timeout: float) -> dict[int, Future[int]]:
        """Ask where partitions end, and wait for no answer; it may be a KafkaException.

        The leaders, as last heard of, are asked apart: an answer to one request waits for all it concerns.
        """
        by_leader: dict[int | None, list[int]] = defaultdict(list)
        for partition in partitions:
            by_leader[self._leaders.get(partition)].append(partition)
        answers: dict[int, Future[int]] = {}
        for led in by_leader.values():
            latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            places = {TopicPartition(self._topic, partition): latest for partition in led}
            # Without records of open transactions: reading does not get these either.
            told = self._admin.list_offsets(
                places, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout
            )
            answers |= {place.partition: _end_of(answer) for place, answer in told.items()}
        return answers

    def log_id(self, timeout: float) -> LogId:
        """Which log it is, as far as the broker tells."""
        try:
            cluster_id = self._consumer.list_topics(self._topic, timeout=timeout).cluster_id
            described = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=timeout)
            topic_id = described[self._topic].result(timeout).topic_id
        except Exception as error:
            logger.debug("the id of topic %r is not known: %s", self._topic, error)
            return LogId()
        return LogId(str(cluster_id or ""), str(topic_id or ""))

    def commit(self, positions: Mark, trouble: str | None, timeout: float) -> bool:
        """Make `positions` the group's offsets; return whether the broker took them.

        Args:
            trouble: why it need not be asked.
        """
        refusal = trouble or self._commit(positions, timeout)
        self.commits["refused" if refusal else "committed"] += 1
        if refusal and self.commits["refused"] == 1:
            logger.warning("group %r: positions not committed: %s", self._group_id, refusal)
        return not refusal

    def _commit(self, positions: Mark, timeout: float) -> str:
        """Why the broker did not take the positions; empty if it did.

        Asked through the consumer, since librdkafka's admin client can bring the process down when the
        connection to a group's coordinator breaks (confluentinc/librdkafka#5397).
        """
        with self._committing:
            self._refusals.clear()
            try:
                self._consumer.commit(offsets=self._places(positions), asynchronous=True)
                deadline = time.monotonic() + timeout
                # The answer to an earlier commit, given up on by now, may come before this one's.
                while (asked := frozenset(positions.items())) not in self._refusals:
                    if time.monotonic() > deadline:
                        return "no answer in time"
                    self._consumer.poll(ANSWER_INTERVAL)
            except KafkaException as error:
                return reason_of(error)
            return self._refusals[asked]

    def _places(self, positions: Mark) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition, offset) for partition, offset in positions.items()]

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        told = [one.str() for one in (error, *(place.error for place in places)) if one is not None]
        answered = frozenset((place.partition, place.offset) for place in places)
        self._refusals[answered] = "; ".join(dict.fromkeys(told))

    def check(self, timeout: float) -> None:
        """Refuse a topic that eats its history, and warn once of one that forgets it early.

        A broker that does not tell is believed.

        Raises:
            TopicError: the cleanup policy compacts.
        """
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        try:
            config = self._admin.describe_configs([resource], request_timeout=timeout)[resource].result(
                timeout
            )
        except Exception as error:
            logger.debug("the settings of topic %r are not known: %s", self._topic, error)
            return
        values = {name: entry.value for name, entry in config.items()}
        policy = values.get("cleanup.policy") or ""
        if "compact" in policy:
            raise TopicError(
                f"topic {self._topic!r} has cleanup.policy={policy}, which keeps one record a key and so "
                "eats the history of every emitter; it must be delete"
            )
        retention = _milliseconds(values.get("retention.ms"))
        if 0 <= retention < self._repair_window * 1000 and not self._warned:
            self._warned = True
            logger.warning(
                "topic %r keeps records for %g s, less than the repair window of %g s",
                self._topic, retention / 1000, self._repair_window,
            )  # fmt: skip


def _end_of(told: Future[ListOffsetsResultInfo]) -> Future[int]:
    end: Future[int] = Future()

    def pass_on(answer: Future[ListOffsetsResultInfo]) -> None:
        failure = answer.exception()
        if failure is not None:
            end.set_exception(failure)
        elif answer.result().offset < 0:
            # So the client says that the leader of a partition has not answered, and calls that no failure.
            end.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer from the leader")))
        else:
            end.set_result(answer.result().offset)

    told.add_done_callback(pass_on)
    return end


def _milliseconds(value: str | None) -> int:
    try:
        return int(value or -1)
    except ValueError:
        return -1
