"""Batches by way of a spool: on disk before they are sent, and gone from it once the broker has them.

`publish` appends to the spool and returns. A thread of the sink's own sends what the spool holds, oldest
first, and what an earlier process left is the oldest: it goes out under its own incarnation and numbers
before anything new. Records are in flight together as long as all goes well; when one is not taken, sending
begins again with it, alone at first, so that nothing overtakes it.

What can go wrong is counted, and never ends the stream. At the spool's bound the newest batches are refused
and leave a hole. While the disk takes nothing, batches wait in memory instead, in their place in the order. A
record that the broker will never take, or that the disk has spoiled, is left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from producer.events import CacheEventBatch
from producer.sinks.protocol import Answer, Carrier, PublishError
from producer.spool.log import SpoolFull, SpoolLog
from producer.spool.segment import Record
from producer.spool.sending import Sending
from producer.throttle import Throttle
from producer.wire import Wire

MAX_BYTES: Final = 2**30
"""Bytes that the spool may take on disk."""
MEMORY_BYTES: Final = 32 * 2**20
"""Bytes of records that may wait in memory while the disk takes none."""
SYNC_INTERVAL: Final = 1.0
"""Seconds between two fsyncs: what a crash of the machine, not of the process, may cost."""
POLL_INTERVAL: Final = 0.05
"""Seconds to wait for an answer before looking for more to send."""
RETRY_FIRST: Final = 0.1
RETRY_LONGEST: Final = 5.0
"""Seconds until a record that was not taken is sent again, doubled each time."""
CLOSE_TIMEOUT: Final = 1.0
"""Seconds that `close` waits for records in flight; what is left waits on disk for the next start."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpoolCounters:
    """What a spool holds, and what it has done since it was opened.

    Attributes:
        waiting: batches that the broker has not acknowledged.
        in_memory: how many of these are on no disk, as it took none; they end with the process.
        bytes: what the spool takes on disk.
        inherited: batches that an earlier process had left.
        delivered: batches that the broker has acknowledged.
        refused: batches that found no room, on disk or in memory, or that cannot be encoded.
        rejected: batches that the broker will never take, such as one beyond its limit for records.
        damaged: batches torn by a crash, spoiled on disk, or in memory when a process ended.
        disk_errors: times that the disk did not do what it was asked to.
        retries: times that sending began again with the oldest batch.
    """

    waiting: int
    in_memory: int
    bytes: int
    inherited: int
    delivered: int
    refused: int
    rejected: int
    damaged: int
    disk_errors: int
    retries: int


class SpoolSink:
    """Sends batches by way of a spool.

    Args:
        folder: the spool's own; made if missing. One emitter at a time can have it.
        carrier: sends the records; closed with the sink.
        max_bytes: what the spool may take on disk.
        sync_interval: seconds between two fsyncs.

    Raises:
        producer.spool.log.SpoolError: the folder is in use, or holds a spool of another version.
        OSError: the folder cannot be read or written.
    """

    def __init__(
        self,
        folder: Path,
        carrier: Carrier,
        *,
        max_bytes: int = MAX_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        sync_interval: float = SYNC_INTERVAL,
    ) -> None:
        self._folder = folder
        self._carrier = carrier
        self._memory_bytes = memory_bytes
        self._sync_interval = sync_interval
        self._log = SpoolLog(folder, max_bytes)
        self._inherited = self._log.next - self._log.first
        self._refused = self._rejected = self._delivered = self._retries = self._disk_errors = 0
        self._damaged = self._log.torn
        self._throttle = Throttle()

        self._unspooled: dict[int, Record] = {}
        self._unspooled_bytes = 0

        # The sender's own.
        self._sending = Sending(self._log.first)
        self._retry = RETRY_FIRST
        self._sync_due = 0.0

        self._settled = threading.Condition()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cache-event-spool", daemon=True)
        self._thread.start()

    @property
    def wires(self) -> frozenset[Wire]:
        """The form of its records."""
        return frozenset((self._carrier.wire,))

    def counters(self) -> SpoolCounters:
        """A reading of the counters; those of a record under way may be a step apart."""
        return SpoolCounters(
            waiting=self._log.next - self._log.first,
            in_memory=len(self._unspooled),
            bytes=self._log.size,
            inherited=self._inherited,
            delivered=self._delivered,
            refused=self._refused,
            rejected=self._rejected,
            damaged=self._damaged,
            disk_errors=self._disk_errors,
            retries=self._retries,
        )

    def publish(self, batches: Sequence[CacheEventBatch]) -> None:
        """Append batches; raises `PublishError` once all were tried."""
        if self._stopping.is_set():
            raise PublishError(f"the spool in {self._folder} is closed", len(batches))
        refused, cause = 0, None
        for batch in batches:
            try:
                self._keep(batch.instance_id.encode(), self._carrier.encode(batch))
            except (OSError, SpoolFull, ValueError) as error:
                refused, cause = refused + 1, error
        self._wake.set()
        if cause is not None:
            self._refused += refused
            raise PublishError(
                f"the spool did not take {refused} of {len(batches)} batches: {cause}", refused
            ) from cause

    def flush(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until the broker has acknowledged all that was published before."""
        end = self._log.next
        with self._settled:
            return self._settled.wait_for(lambda: self._log.first >= end, timeout)

    def close(self) -> None:
        """Wait a moment for records in flight and let go of the folder; what is left waits in it."""
        if self._stopping.is_set():
            return
        self.flush(CLOSE_TIMEOUT)
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        self._carrier.close()
        try:
            self._settle()
            self._tell_what_is_left()
        finally:
            self._log.close()

    def _tell_what_is_left(self) -> None:
        in_memory = len(self._unspooled)
        if on_disk := self._log.next - self._log.first - in_memory:
            logger.info("%d batches wait in %s for the next start", on_disk, self._folder)
        if in_memory:
            logger.warning(
                "%d batches are lost and leave a gap: the disk of %s took none", in_memory, self._folder
            )

    def _keep(self, key: bytes, value: bytes) -> None:
        try:
            self._log.append(key, value)
        except OSError as error:
            self._disk_trouble(error)
            if self._unspooled_bytes + len(value) > self._memory_bytes:
                raise
            index = self._log.next
            self._unspooled[index] = Record(index, key, value)
            self._unspooled_bytes += len(value)
            self._log.skip()

    # What follows runs on the sink's own thread.

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._step()
            except OSError as error:
                self._disk_trouble(error)
                self._stopping.wait(RETRY_FIRST)
            except Exception:
                logger.exception("the spool in %s stumbled", self._folder)
                self._stopping.wait(RETRY_LONGEST)

    def _step(self) -> None:
        self._send()
        if self._sending.waits or self._sending.failed:
            if not self._carrier.serve(0.0 if self._sending.failed else POLL_INTERVAL):
                self._sending.broken()
        else:
            self._wake.wait(self._sync_interval)
            self._wake.clear()
        if self._sending.failed:
            self._begin_again()
        self._settle()
        if time.monotonic() >= self._sync_due:
            self._sync_due = time.monotonic() + self._sync_interval
            self._log.sync()

    def _send(self) -> None:
        while (index := self._sending.next(self._log.next)) is not None:
            record = self._unspooled.get(index) or self._log.read(index)
            if record is None:
                self._sending.leave_out(index)
                self._damaged += 1
                self._tell_left_out(index, "it is damaged, or was in memory when a process ended")
                continue
            self._sending.sent(index)
            if not self._carrier.send(record.key, record.value, partial(self._answer, index)):
                self._sending.held_back(index)
                return

    def _answer(self, index: int, answer: Answer) -> None:
        self._sending.answered(index, answer)
        if answer is Answer.TAKEN:
            self._delivered += 1
            self._retry = RETRY_FIRST

    def _begin_again(self) -> None:
        self._carrier.reset()
        self._retries += 1
        left_out = self._sending.begin_again()
        if left_out is not None:
            self._rejected += 1
            self._tell_left_out(left_out, "the broker will never take it")
            return
        self._warn("retry", "the oldest batch of %s was not taken, sending again from there", self._folder)
        self._stopping.wait(self._retry)
        self._retry = min(2 * self._retry, RETRY_LONGEST)

    def _settle(self) -> None:
        settled = self._sending.settle()
        for index in settled:
            if (record := self._unspooled.pop(index, None)) is not None:
                self._unspooled_bytes -= len(record.value)
        if not settled:
            return
        try:
            self._log.acknowledge(self._sending.first)
        finally:
            with self._settled:
                self._settled.notify_all()

    def _tell_left_out(self, index: int, reason: str) -> None:
        self._warn("left out", f"batch {index} of %s is left out and leaves a gap: {reason}", self._folder)

    def _disk_trouble(self, error: OSError) -> None:
        self._disk_errors += 1
        self._warn("disk", "the disk of the spool fails: %s", error)

    def _warn(self, trouble: str, message: str, argument: object) -> None:
        if self._throttle.due(trouble):
            logger.warning(message, argument)
