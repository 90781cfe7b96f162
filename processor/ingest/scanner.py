"""Reads stretches of the log a second time, on a consumer of its own, for the streams that ask for it.

Up to `MAX_SCANS` partitions are read at once; further scans wait for their turn. Records of other emitters
are skipped by their key before they are decoded; a record without a key may be anyone's. A scan ends by
position and not by message: transactions and deleted records leave offsets that no message has, so a scan is
over when something at or behind its end comes by, be it a record or the partition's end.

Not thread-safe: one thread steps it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from processor.batch import EventBatch
from processor.ingest.decode import DecodeError
from processor.ingest.kafka_settings import REQUEST_TIMEOUT, KafkaSettings
from processor.ingest.kafka_topic import TopicInspector
from processor.ingest.ranges import LossReason
from processor.ingest.records import Drain, RecordReader, position_of
from processor.ingest.search import Place, Scan, Search
from processor.ingest.source import Position

logger = logging.getLogger(__name__)

MAX_SCANS = 4
"""Partitions read again at the same time."""
POLL_TIMEOUT = 0.1
"""Seconds that one step waits for a record at most."""
_OVERRIDES = {"client.id": "blendstream-replay", "queued.max.messages.kbytes": "8192"}
"""A replay is never so urgent that it should hold much memory."""


@dataclass(slots=True)
class ScanCounters:
    """Totals since the start.

    Attributes:
        scans: ended, whether they found anything or not.
        failures: scans that have to be done again.
        offered: records of streams that something was wanted of.
        skipped: records of other emitters.
        undecodable: records that may have been wanted, and could not be decoded.
    """

    scans: int = 0
    failures: int = 0
    offered: int = 0
    skipped: int = 0
    undecodable: int = 0


@dataclass(slots=True)
class _Running:
    """A scan under way. `position` is the next offset to read."""

    scan: Scan
    position: int
    by_key: dict[bytes, Search] = field(default_factory=dict)


class Scanner:
    """Scans partitions, several at a time.

    Args:
        topic: tells where partitions begin and end.
        offer: takes each batch of a stream that is searched for.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: TopicInspector,
        reader: RecordReader,
        offer: Callable[[EventBatch, Position], object],
    ) -> None:
        self.counters = ScanCounters()
        self._settings = settings
        self._topic = topic
        self._reader = reader
        self._offer = offer
        self._drain = Drain()
        self._consumer: Consumer | None = None
        self._waiting: deque[Scan] = deque()
        self._running: dict[int, _Running] = {}

    @property
    def busy(self) -> bool:
        """Whether any scan is under way or waits."""
        return bool(self._running or self._waiting)

    def add(self, scans: Iterable[Scan]) -> None:
        """Take on further scans."""
        self._waiting.extend(scans)

    def position(self, search: Search) -> int | None:
        """The next offset to be read for a search, None if its scan is not under way."""
        running = self._running.get(search.partition)
        return None if running is None or search not in running.scan.searches else running.position

    def drop(self, instance_id: str) -> None:
        """Stop searching for a stream; scans that nobody else needs end with it."""
        for scan in [*self._waiting, *(running.scan for running in self._running.values())]:
            scan.searches = [search for search in scan.searches if search.instance_id != instance_id]
        for running in self._running.values():
            running.by_key.pop(instance_id.encode(), None)
        self._waiting = deque(scan for scan in self._waiting if scan.searches)
        idle = [partition for partition, running in self._running.items() if not running.scan.searches]
        for partition in idle:
            del self._running[partition]
        if idle:
            self._assign()

    def step(self) -> list[Scan]:
        """Read for a moment; return the scans that came to their end.

        Raises:
            KafkaException, TopicError: the log cannot be read at present; `fail` must follow.
        """
        empty = self._begin()
        ended = self._read_on() if self._running else []
        self.counters.scans += len(empty) + len(ended)
        if ended:
            self._assign()
        return empty + ended

    def fail(self) -> None:
        """Give up all scans; whoever asked for them asks again."""
        self.counters.failures += len(self._running) + len(self._waiting)
        self._running.clear()
        self._waiting.clear()
        self.close()

    def close(self) -> None:
        """Let go of the connection; the next scan makes a new one."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _begin(self) -> list[Scan]:
        """Start what waits, as far as there is room; return scans that had nothing to read."""
        empty: list[Scan] = []
        started = False
        for scan in list(self._waiting):
            if len(self._running) >= MAX_SCANS:
                break
            if scan.partition in self._running:
                continue
            low, _ = self._topic.bounds(scan.partition, REQUEST_TIMEOUT)
            self._waiting.remove(scan)
            start = low if scan.start is None else max(low, scan.start)
            self._note_cuts(scan, low)
            if start >= scan.until:
                empty.append(scan)
                continue
            by_key = {search.instance_id.encode(): search for search in scan.searches}
            self._running[scan.partition] = _Running(scan, start, by_key)
            started = True
        if started:
            self._assign()
        return empty

    def _read_on(self) -> list[Scan]:
        """Take what has come; return the scans that ended with it."""
        assert self._consumer is not None
        message = self._consumer.poll(POLL_TIMEOUT)
        messages = [] if message is None else [message]
        messages += self._consumer.consume(self._drain.size(), timeout=0)
        return [scan for each in messages for scan in self._take(each)]

    def _note_cuts(self, scan: Scan, low: int) -> None:
        for search in scan.searches:
            if low > (search.start or 0):
                search.met(LossReason.BEFORE_LOG)

    def _assign(self) -> None:
        if not self._running:
            self.close()
            return
        if self._consumer is None:
            self._consumer = self._settings.new_consumer(_ignore, _OVERRIDES)
        topic = self._settings.topic
        self._consumer.assign([TopicPartition(topic, p, run.position) for p, run in self._running.items()])

    def _take(self, message: Message) -> list[Scan]:
        position = position_of(message)
        running = self._running.get(position.partition)
        error = message.error()
        if error is not None:
            return self._take_error(error, position, running)
        if running is None or position.offset < running.position:
            return []  # left over from before an assignment
        if position.offset < running.scan.until:
            self._read(running, message, position)
            running.position = position.offset + 1
        if running.position >= running.scan.until or position.offset >= running.scan.until:
            return self._end(running)
        return []

    def _take_error(self, error: KafkaError, position: Position, running: _Running | None) -> list[Scan]:
        if error.code() == KafkaError._PARTITION_EOF:
            # A replica may lag behind what live reading saw; a log that really is shorter was made anew.
            if running is not None and (position.offset >= running.scan.until or self._is_end(position)):
                return self._end(running)
            return []
        if error.code() == KafkaError._AUTO_OFFSET_RESET and running is not None:
            low, high = self._topic.bounds(position.partition, REQUEST_TIMEOUT)
            self._note_cuts(running.scan, low)
            running.position = max(running.position, low)
            if running.position >= min(running.scan.until, high):
                return self._end(running)
            self._assign()
            return []
        raise KafkaException(error)

    def _is_end(self, position: Position) -> bool:
        return position.offset >= self._topic.bounds(position.partition, REQUEST_TIMEOUT)[1]

    def _end(self, running: _Running) -> list[Scan]:
        del self._running[running.scan.partition]
        return [running.scan]

    def _read(self, running: _Running, message: Message, position: Position) -> None:
        key = message.key()
        self._drain.saw(message)
        if key is not None and key not in running.by_key:
            self.counters.skipped += 1
            return
        try:
            batches = self._reader.read(message)
        except DecodeError:
            self.counters.undecodable += 1
            for search in running.scan.searches if key is None else [running.by_key[key]]:
                if search.covers(position.offset):
                    search.met(LossReason.UNDECODABLE)
            return
        wanted = running.by_key.get(batches[0].instance_id.encode()) if batches else None
        if wanted is None or not wanted.covers(position.offset):
            self.counters.skipped += 1
            return
        self.counters.offered += 1
        wanted.saw(_place(batches[0]), _place(batches[-1]))
        for batch in batches:
            self._offer(batch, position)


def _place(batch: EventBatch) -> Place:
    return Place(batch.incarnation, batch.seq)


def _ignore(error: KafkaError) -> None:
    """Live reading meets the same troubles and tells of them."""
    logger.debug("the replaying consumer reports: %s", error)
