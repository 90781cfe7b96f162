"""Reads every partition of a topic on a thread of its own, in order, and offers what it reads to the gate.

It survives whatever the broker does, and says why nothing can be read while that is so. A position that the
broker no longer holds, or not yet, is an event to handle and not a reason to skip quietly
(`auto.offset.reset=error`): the emitters of that partition may have lost what came next, and are told so to
the gate. A log that is not the one that was read before is read from its start.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from processor.ingest.dead_letters import DeadLetters
from processor.ingest.decode import DecodeError
from processor.ingest.end_questions import EndQuestions
from processor.ingest.gate import EventGate
from processor.ingest.kafka_settings import GONE, REQUEST_TIMEOUT, KafkaSettings, reason_of
from processor.ingest.kafka_topic import LogId, TopicError, TopicInspector
from processor.ingest.log_memory import LogMemory
from processor.ingest.progress import PartitionProgress
from processor.ingest.records import Drain, RecordReader, position_of
from processor.ingest.source import Position
from producer.throttle import Throttle

logger = logging.getLogger(__name__)

POLL_TIMEOUT = 0.2
"""Seconds that one wait for a message takes at most, and so that a stop waits."""
REFRESH_INTERVAL = 10.0
"""Seconds from one look at the topic's partitions to the next."""
END_INTERVAL = 0.2
"""Seconds from one look at the ends that brokers have sent along, or told when asked, to the next."""
SILENCE = 1.0
"""Seconds without a word on a partition after which its leader is asked where it ends: with the time that it
has to answer, brokers that hang are noticed within five seconds.
"""
MARKS_INTERVAL = 60.0
"""Seconds from one look at where the log begins to the next, while departures have left marks in it."""
RETRY_INTERVAL = 1.0
"""Seconds from one attempt to reach the broker or the topic to the next."""


class LogReader:
    """The reading thread.

    Args:
        log: what is remembered of the log; this writes it.
        topic: tells of the topic.
        dead_letters: takes what cannot be decoded.
        on_reading: called each time that reading begins, once it is known in which log.
        clock: seconds since the epoch.

    Attributes:
        trouble: why nothing can be read at present, None if something can.
    """

    def __init__(
        self,
        gate: EventGate,
        log: LogMemory,
        settings: KafkaSettings,
        topic: TopicInspector,
        reader: RecordReader,
        dead_letters: DeadLetters,
        *,
        on_reading: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.trouble: str | None = f"topic {settings.topic!r} has not been reached yet"
        self._gate = gate
        self._log = log
        self._settings = settings
        self._topic = topic
        self._reader = reader
        self._dead_letters = dead_letters
        self._on_reading = on_reading
        self._clock = clock
        self._throttle = Throttle()
        self._marks_pace = Throttle(MARKS_INTERVAL)
        self._drain = Drain()
        self._questions = EndQuestions(self._request_ends, clock)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-source", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End reading; when this returns, nothing more is offered to the gate. May be called twice."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._read()
            except KafkaException as error:
                self._set_trouble(reason_of(error))
            except TopicError as error:
                self._set_trouble(str(error))
            except Exception as error:
                self._set_trouble(f"reading failed: {error!r}")
                logger.exception("reading topic %r failed, beginning anew", self._settings.topic)
            self._ending.wait(RETRY_INTERVAL)

    def _read(self) -> None:
        """Read with one consumer until the end, or until something makes another one necessary."""
        partitions = self._find_partitions()
        consumer = self._settings.new_consumer(self._on_error)
        try:
            self._assign(consumer, partitions)
            self._on_reading()
            look, retry = Throttle(END_INTERVAL), Throttle(RETRY_INTERVAL)
            refresh = Throttle(REFRESH_INTERVAL)
            refresh.due()  # the partitions were looked at just now
            while not self._ending.is_set():
                message = consumer.poll(POLL_TIMEOUT)
                if message is not None:
                    self._take(consumer, message)
                    for further in consumer.consume(self._drain.size(), timeout=0):
                        self._take(consumer, further)
                if look.due():
                    self._look_at_ends(consumer)
                if refresh.due() or (self.trouble is not None and retry.due()):
                    self._notice_new_partitions(consumer)
        finally:
            consumer.close()

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._set_trouble(f"no broker of {self._settings.bootstrap_servers} can be reached")
        else:
            logger.debug("the consumer reports: %s", error)

    def _find_partitions(self) -> list[int]:
        partitions = self._topic.partitions(REQUEST_TIMEOUT)
        if not partitions:
            if self._log.progress.partitions:
                # If it comes back, it is another log.
                self._begin_anew(LogId())
            raise TopicError(f"topic {self._settings.topic!r} does not exist; waiting for it")
        self._topic.check(REQUEST_TIMEOUT)
        log_id = self._topic.log_id(REQUEST_TIMEOUT)
        if log_id.differs(self._log.log_id):
            logger.warning(
                "topic %r is not the log that was read before (%s, then %s); reading it from its start",
                self._settings.topic, self._log.log_id, log_id,
            )  # fmt: skip
            self._begin_anew(log_id)
        self._log.log_id = log_id.or_else(self._log.log_id)
        return partitions

    def _begin_anew(self, log_id: LogId) -> None:
        """What was read so far lies in another log."""
        with self._gate.quiesced():
            self._gate.lose_log()
            self._log.begin_anew(log_id)

    def _free_marks(self) -> None:
        """Give up what departures left in the log that it does not hold any more."""
        if self._gate.marked and self._marks_pace.due():
            bounds = self._topic.all_bounds(REQUEST_TIMEOUT)
            self._gate.free_marks({p: start for p, (start, _) in bounds.items()})

    def _notice_new_partitions(self, consumer: Consumer) -> None:
        read = self._log.progress
        try:
            found = self._find_partitions()
            self._free_marks()
        except KafkaException as error:
            self._set_trouble(reason_of(error))
            return
        if self._log.progress is not read:
            raise TopicError(f"topic {self._settings.topic!r} was made anew; beginning at its start")
        new = sorted(set(found) - set(self._log.progress.partitions))
        if new:
            logger.info("topic %r has new partitions: %s", self._settings.topic, new)
            self._assign(consumer, found)

    def _assign(self, consumer: Consumer, partitions: list[int]) -> None:
        """Assign all partitions: known ones where they stand, others at their start."""
        for partition in set(partitions) - set(self._log.progress.partitions):
            low, high = self._topic.bounds(partition, REQUEST_TIMEOUT)
            self._log.progress.begin(partition, low, high, self._clock())
        topic = self._settings.topic
        consumer.assign([TopicPartition(topic, p.partition, p.position) for p in self._log.progress])
        self._set_trouble(None)

    def _look_at_ends(self, consumer: Consumer) -> None:
        """Take what brokers have sent along and answered, and ask those that were silent."""
        for progress in self._log.progress:
            asked = TopicPartition(self._settings.topic, progress.partition)
            # As the leader last told; that may be long ago, so it does not count as heard.
            bounds = consumer.get_watermark_offsets(asked, cached=True)
            if bounds is not None and bounds[1] >= 0:
                progress.see_end(bounds[1])
        self._take_answers()
        now = self._clock()
        self._questions.ask(p.partition for p in self._log.progress if not 0.0 <= now - p.heard < SILENCE)

    def _take_answers(self) -> None:
        failures = []
        for answer in self._questions.answers():
            progress = self._log.progress.partitions.get(answer.partition)
            if progress is None:
                continue
            if answer.end is None:
                failures.append(answer)
            else:
                progress.hear_end(answer.end, answer.asked)
                self._set_trouble(None)
        if failures and all(progress.heard <= failures[-1].asked for progress in self._log.progress):
            self._set_trouble(failures[-1].failure)
        for answer in failures:
            if self._throttle.due(("silent", answer.partition)):
                name = f"{self._settings.topic}[{answer.partition}]"
                logger.warning("%s: the leader does not tell where it ends: %s", name, answer.failure)

    def _request_ends(self, partitions: Iterable[int]) -> dict[int, Future[int]]:
        return self._topic.request_ends(partitions, REQUEST_TIMEOUT)

    def _take(self, consumer: Consumer, message: Message) -> None:
        position, error = position_of(message), message.error()
        progress = self._log.progress.partitions.get(position.partition)
        if error is not None:
            self._take_error(consumer, position, progress, error)
            return
        if progress is None or position.offset < progress.position:
            return  # left over from before an assignment
        self._drain.saw(message)
        self._ingest(message, position)
        progress.position = position.offset + 1
        progress.read_time = self._reader.time_of(message)
        progress.heard = self._clock()
        self._set_trouble(None)

    def _take_error(
        self, consumer: Consumer, position: Position, progress: PartitionProgress | None, error: KafkaError
    ) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if progress is not None and position.offset >= progress.position:
                progress.position = progress.end = position.offset
                progress.hear_end(position.offset, self._clock())
            self._set_trouble(None)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET and progress is not None:
            self._position_lost(consumer, progress, error)
        elif error.code() in GONE:
            raise KafkaException(error)
        else:
            self._set_trouble(error.str())

    def _position_lost(self, consumer: Consumer, progress: PartitionProgress, error: KafkaError) -> None:
        self._notice_new_partitions(consumer)
        low, high = self._topic.bounds(progress.partition, REQUEST_TIMEOUT)
        logger.warning(
            "%s[%d]: the log does not hold position %d (%s); reading on from %d",
            self._settings.topic, progress.partition, progress.position, error.str(), low,
        )  # fmt: skip
        self._gate.lose_tails(progress.partition)
        self._log.progress.jump(progress.partition, low, high, self._clock())
        self._assign(consumer, list(self._log.progress.partitions))

    def _ingest(self, message: Message, position: Position) -> None:
        try:
            batches = self._reader.read(message)
        except DecodeError as error:
            self._log.skipped.add(message.key(), position.partition)
            self._dead_letters.add(message, str(error))
            return
        self._gate.offer_all(batches, position)
        if batches:
            last = batches[-1]
            self._log.offsets.note(last.instance_id, last.incarnation, last.seq, position)

    def _set_trouble(self, what: str | None) -> None:
        """Why nothing can be read at present, None if something can."""
        self.trouble = what
        if what is None:
            return
        # The ends heard of before would make it look as if nothing had come meanwhile.
        self._log.progress.lose_touch()
        self._questions.void()
        if self._throttle.due(what):
            logger.warning("topic %r cannot be read: %s", self._settings.topic, what)
