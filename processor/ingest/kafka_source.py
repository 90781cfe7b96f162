"""Events from a Kafka topic: every partition, in order, from where the state stands, for as long as it runs.

All partitions are assigned by hand, since every replica needs the whole fleet and none may be rebalanced
away. What reads is `log_reader`, and what searches the log again `replay`; this puts them together. The
position of a partition advances with reading, also past records that cannot be decoded or that the gate
drops. Nothing is committed here but what a checkpoint holds, and nothing depends on what is committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException

from processor.ingest.capture import Plain
from processor.ingest.dead_letters import DeadLetters
from processor.ingest.decode import Decoder
from processor.ingest.gate import EventGate
from processor.ingest.kafka_settings import REQUEST_TIMEOUT, KafkaSettings, reason_of
from processor.ingest.kafka_topic import TopicError, TopicInspector
from processor.ingest.log_memory import LogMemory
from processor.ingest.log_reader import LogReader
from processor.ingest.records import RecordReader
from processor.ingest.replay import Replayer
from processor.ingest.scanner import Scanner
from processor.ingest.search import Knowledge
from processor.ingest.source import LogEnds, Mark, ReplayCapability, SourceStatus
from processor.ingest.stream import ReplayStatus

logger = logging.getLogger(__name__)


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
        self._live: LogReader | None = None
        self._replayer = Replayer(gate.repairs, self, clock=clock)
        gate.follow(self)

    def start(self) -> None:
        """Begin to read.

        Raises:
            ValueError: a setting would undo what reading rests on, or librdkafka refuses it.
        """
        try:
            consumer = self._settings.new_consumer(lambda error: None)
            self._topic = TopicInspector(self._settings)
            self._dead_letters = DeadLetters(self._settings.dead_letter_topic, self._settings.connection())
        except KafkaException as error:
            raise ValueError(f"librdkafka refuses the settings: {reason_of(error)}") from error
        consumer.close()
        self._live = LogReader(
            self._gate, self._log, self._settings, self._topic, self._reader, self._dead_letters,
            on_reading=self._start_replay, clock=self._clock,
        )  # fmt: skip
        self._live.start()

    def stop(self) -> None:
        """End reading; when this returns, nothing more is offered to the gate. `commit` still works."""
        self._replayer.stop()
        if self._live is not None:
            self._live.stop()
        if self._dead_letters is not None:
            self._dead_letters.close()

    def close(self) -> None:
        """Let go of the broker, after `stop` and the last `commit`. May be called without a start."""
        if self._topic is not None:
            self._topic.close()

    def status(self) -> SourceStatus:
        """How far reading has come, and why it does not go on if it does not."""
        progress, trouble, now = self._log.progress, self._trouble(), self._clock()
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

    def behind(self, partition: int) -> bool:
        """Whether any partition but that one may hold unread records."""
        now = self._clock()
        return any(not each.caught_up(now) for each in self._log.progress if each.partition != partition)

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

    def end_offsets(self) -> LogEnds:
        """The end of every partition at this moment, or as last heard of if a broker does not answer."""
        known = {p.partition: max(p.position, p.end or 0) for p in self._log.progress}
        if self._topic is None or self._trouble() is not None:
            return LogEnds(known, exact=False)
        try:
            told = {p: max(end, known.get(p, 0)) for p, end in self.ask_ends().items()}
        except (KafkaException, TopicError, RuntimeError) as error:
            logger.warning("the ends of topic %r are not known exactly: %s", self._settings.topic, error)
            return LogEnds(known, exact=False)
        # The topic may have been found to be another one meanwhile.
        return LogEnds(known | told, exact=self._trouble() is None)

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
        return self._topic is not None and self._topic.commit(positions, self._trouble(), REQUEST_TIMEOUT)

    def _trouble(self) -> str | None:
        """Why nothing can be read at present."""
        return "reading has not begun yet" if self._live is None else self._live.trouble

    def _start_replay(self) -> None:
        """Once the log is known to be the one that the gaps showed in."""
        if not self._replayer.started:
            assert self._topic is not None
            offer = self._gate.repairs.offer
            self._replayer.start(Scanner(self._settings, self._topic, self._reader, offer))
