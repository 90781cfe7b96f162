"""What is remembered of the log that is read: which one it is, how far it was read, what stands where in it.

All of it means something in that one log alone, so it is forgotten together when another stands in its place
and rides in the checkpoint together: what a capture gathers late is still of the log that it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from processor.ingest.capture import ADDED_TO_LOG, Plain, capture_mark, restore_mark
from processor.ingest.kafka_topic import LogId
from processor.ingest.offsets import OffsetIndex
from processor.ingest.progress import LogProgress
from processor.ingest.search import Knowledge
from processor.ingest.skipped import SkippedRecords
from processor.ingest.source import Mark


class LogMemory:
    """Written by the reading thread; any may look.

    Args:
        positions: where reading begins, by partition.

    Attributes:
        log_id: empty until the broker has told.
        progress: how far the partitions have been read.
        offsets: where the emitters' batches stand.
        skipped: where records could not be decoded.
    """

    def __init__(self, positions: Mark | None = None) -> None:
        self.log_id = LogId()
        self.progress = LogProgress(positions)
        self.offsets = OffsetIndex()
        self.skipped = SkippedRecords()

    def begin_anew(self, log_id: LogId) -> None:
        """Another log is read from its start."""
        # Replaced and not emptied: a capture under way goes on with those of the log before.
        self.log_id, self.progress = log_id, LogProgress()
        self.offsets, self.skipped = OffsetIndex(), SkippedRecords()

    def knowledge(self) -> Knowledge:
        """What a search may rest on."""
        return Knowledge(self.progress.began, self.offsets.before, self.offsets.first, self.skipped.may_hide)

    def freeze(self) -> Callable[[], Plain]:
        """Note this moment; what is returned gives all that is known of this log as data that JSON holds.

        Only which log it is and how far it was read have to be of this moment. Where records stand only has
        to be true of this log, so that is gathered when the result is called.
        """
        small = {
            "cluster_id": self.log_id.cluster_id,
            "topic_id": self.log_id.topic_id,
            "positions": capture_mark(self.progress.positions()),
            "began": capture_mark(self.progress.began.copy()),
        }
        offsets, skipped = self.offsets, self.skipped
        return lambda: {**small, "offsets": offsets.capture(), "skipped": skipped.capture()}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Take over what `freeze` came to.

        Raises:
            KeyError, TypeError, ValueError: it is no such capture.
        """
        data = {**ADDED_TO_LOG, **data}
        log_id = LogId(str(data["cluster_id"]), str(data["topic_id"]))
        progress = LogProgress(restore_mark(data["positions"]), restore_mark(data["began"]))
        offsets, skipped = OffsetIndex(), SkippedRecords()
        offsets.restore(data["offsets"])
        skipped.restore(data["skipped"])
        self.log_id, self.progress, self.offsets, self.skipped = log_id, progress, offsets, skipped
