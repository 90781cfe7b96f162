"""What the broker says of a topic: its partitions, its ends, and whether it keeps events as it must."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

logger = logging.getLogger(__name__)


class TopicError(RuntimeError):
    """The topic cannot be read as it is."""


class TopicInspector:
    """Asks the broker about one topic. May be used from any thread.

    Args:
        connection: how to reach it, as librdkafka takes it.
        group_id: the name to ask under.
        repair_window: seconds for which the log should keep records at least.
    """

    def __init__(
        self, connection: Mapping[str, Any], topic: str, group_id: str, repair_window: float
    ) -> None:
        # Only errors: the reading consumer logs the same troubles, and an admin client would warn of settings
        # that concern consumers alone.
        quiet = {**connection, "log_level": 2}
        self._admin = AdminClient(quiet)
        self._consumer = Consumer({**quiet, "group.id": group_id})
        self._topic = topic
        self._repair_window = repair_window
        self._warned = False

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

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


def _milliseconds(value: str | None) -> int:
    try:
        return int(value or -1)
    except ValueError:
        return -1
