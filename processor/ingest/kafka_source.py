"""Events from a Kafka topic: every partition, in order, from where the state stands, for as long as it runs.

All partitions are assigned by hand, since every replica needs the whole fleet and none may be rebalanced
away. One thread reads, decodes and offers; it survives whatever the broker does and says so in its status.
The position of a partition advances with reading, also past records that cannot be decoded or that the gate
drops. Nothing is committed here, and nothing depends on what is committed.

A position that the broker no longer holds, or not yet, is an event to handle and not a reason to skip
quietly (`auto.offset.reset=error`): the emitters of that partition may have lost what came next, and are
told so to the gate.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from processor.ingest.capture import Plain
from processor.ingest.dead_letters import DeadLetters
from processor.ingest.decode import DecodeError, Decoder
from processor.ingest.end_questions import EndQuestions
from processor.ingest.gate import EventGate
from processor.ingest.kafka_settings import GONE, REQUEST_TIMEOUT, KafkaSettings, reason_of
from processor.ingest.kafka_topic import LogId, TopicError, TopicInspector
from processor.ingest.log_memory import LogMemory
from processor.ingest.progress import PartitionProgress
from processor.ingest.records import Drain, RecordReader, position_of
from processor.ingest.replay import Replayer
from processor.ingest.scanner import Scanner
from processor.ingest.search import Knowledge
from processor.ingest.source import Mark, Position, ReplayCapability, SourceStatus
from processor.ingest.stream import ReplayStatus
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


class KafkaEventSource:
    """Reads a topic on a thread of its own and offers what it reads to the gate.

    Args:
        positions: where to begin, by partition; at the earliest offset where a partition is not named.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        gate: EventGate,
        decoder: Decoder,
        settings: KafkaSettings,
        *,
        positions: Mark | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = LogMemory(positions)
        self._gate = gate
        self._reader = RecordReader(decoder, clock)
        self._settings = settings
        self._clock = clock
        self._topic: TopicInspector | None = None
        self._dead_letters: DeadLetters | None = None
        self._trouble: str | None = f"topic {settings.topic!r} has not been reached yet"
        self._throttle = Throttle()
        self._marks_pace = Throttle(MARKS_INTERVAL)
        self._drain = Drain()
        self._questions = EndQuestions(self._request_ends, clock)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-source", daemon=True)
        self._replayer = Replayer(gate.repairs, self, clock=clock)
        gate.follow(self)

    def start(self) -> None:
        """Begin to read.

        Raises:
            ValueError: a setting would undo what reading rests on, or librdkafka refuses it.
        """
        try:
            consumer = self._settings.new_consumer(self._on_error)
            self._topic = TopicInspector(self._settings)
            self._dead_letters = DeadLetters(self._settings.dead_letter_topic, self._settings.connection())
        except KafkaException as error:
            raise ValueError(f"librdkafka refuses the settings: {reason_of(error)}") from error
        consumer.close()
        self._thread.start()

    def stop(self) -> None:
        """End reading; when this returns, nothing more is offered to the gate. `commit` still works."""
        self._ending.set()
        self._replayer.stop()
        if self._thread.is_alive():
            self._thread.join()
        if self._dead_letters is not None:
            self._dead_letters.close()

    def close(self) -> None:
        """Let go of the broker, after `stop` and the last `commit`. May be called without a start."""
        if self._topic is not None:
            self._topic.close()

    def status(self) -> SourceStatus:
        """How far reading has come, and why it does not go on if it does not."""
        progress, trouble, now = self._log.progress, self._trouble, self._clock()
        return SourceStatus(
            name="kafka",
            capability=ReplayCapability.SEEKABLE,
            partitions=[partition.status() for partition in progress],
            lag_seconds=None if trouble is not None else progress.lag_seconds(now),
            caught_up=trouble is None and progress.caught_up(now),
            error=trouble,
            undecodable=self._dead_letters.count if self._dead_letters else 0,
            dead_letters_lost=self._dead_letters.lost if self._dead_letters else 0,
            replay=self._replayer.totals(),
            commits=dict(self._topic.commits) if self._topic else {},
        )

    def watermark(self) -> float:
        """The time in seconds up to which every partition has been read; 0 while unknown."""
        return self._log.progress.watermark()

    def positions(self) -> dict[int, int]:
        """The next offset to read of every partition."""
        return self._log.progress.positions()

    def freeze(self) -> Callable[[], Plain]:
        """Note where reading stands, with the gate held; what is returned gives that as data that JSON holds.

        With it go which log that is, and where batches stand there. Calling it waits for dead letters.
        """
        gather = self._log.freeze()

        def capture() -> Plain:
            if self._dead_letters is not None:
                # Who goes on from this capture does not read the records again that these are copies of.
                self._dead_letters.flush()
            return gather()

        return capture

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `freeze` came to; to be called before `start`.

        If the log turns out to be another one, it is read from its start.

        Raises:
            KeyError, TypeError, ValueError: it is no such capture.
        """
        self._log.restore(data)

    def end_offsets(self) -> dict[int, int]:
        """The end of every partition at this moment, or as last heard of if the broker does not answer."""
        known = {p.partition: max(p.position, p.end or 0) for p in self._log.progress}
        if self._topic is None or self._trouble is not None:
            return known
        try:
            return known | {p: max(end, known.get(p, 0)) for p, end in self.ask_ends().items()}
        except (KafkaException, TopicError, RuntimeError) as error:
            logger.warning("the ends of topic %r are not known exactly: %s", self._settings.topic, error)
        return known

    def ask_ends(self) -> dict[int, int]:
        """Where every partition of the topic ends.

        Raises:
            KafkaException, TopicError: the broker does not tell.
        """
        assert self._topic is not None
        return {p: end for p, (_, end) in self._topic.all_bounds(REQUEST_TIMEOUT).items()}

    def knowledge(self) -> Knowledge:
        """What is known of where batches stand."""
        return self._log.knowledge()

    def replay(
        self,
        instance_id: str,
        incarnation: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        """Search the log for what a stream lacks: every open range, or what the other arguments name.

        A closed range must be named by at least one of them; the stream is then re-applied from there on.
        Returns at once; the stream's status tells how far it is.

        Raises:
            UnknownStream: nothing is known of the instance.
        """
        self._replayer.request(instance_id, incarnation, first, last)

    def replay_status(self, instance_id: str) -> ReplayStatus | None:
        """What replay does about a stream."""
        return self._replayer.status(instance_id)

    def commit(self, positions: Mark) -> bool:
        """Tell the broker how far a durable checkpoint has come, for lag tools; return whether it took that.

        Nothing here depends on it: a refusal is counted, logged once, and harms nothing. Waits for an answer
        three seconds at most, and for none while the log cannot be read.
        """
        return self._topic is not None and self._topic.commit(positions, self._trouble, REQUEST_TIMEOUT)

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
            self._start_replay()
            refresh = time.monotonic() + REFRESH_INTERVAL
            look = 0.0
            while not self._ending.is_set():
                message = consumer.poll(POLL_TIMEOUT)
                if message is not None:
                    self._take(consumer, message)
                    for further in consumer.consume(self._drain.size(), timeout=0):
                        self._take(consumer, further)
                now = time.monotonic()
                if now >= look:
                    self._look_at_ends(consumer)
                    look = now + END_INTERVAL
                if self._trouble:
                    refresh = min(refresh, now + RETRY_INTERVAL)
                if now >= refresh:
                    self._notice_new_partitions(consumer)
                    refresh = time.monotonic() + REFRESH_INTERVAL
        finally:
            consumer.close()

    def _start_replay(self) -> None:
        """Once the log is known to be the one that the gaps showed in."""
        if not self._replayer.started:
            assert self._topic is not None
            offer = self._gate.repairs.offer
            self._replayer.start(Scanner(self._settings, self._topic, self._reader, offer))

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._set_trouble(f"no broker of {self._settings.bootstrap_servers} can be reached")
        else:
            logger.debug("the consumer reports: %s", error)

    def _find_partitions(self) -> list[int]:
        assert self._topic is not None
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
        assert self._topic is not None
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
        assert self._topic is not None
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
        assert self._topic is not None
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
        assert self._topic is not None
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
        assert self._dead_letters is not None
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
        self._trouble = what
        if what is None:
            return
        # The ends heard of before would make it look as if nothing had come meanwhile.
        self._log.progress.lose_touch()
        self._questions.void()
        if self._throttle.due(what):
            logger.warning("topic %r cannot be read: %s", self._settings.topic, what)
