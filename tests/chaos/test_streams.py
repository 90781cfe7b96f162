"""What befalls a stream under load ends in exactly the ranges that it should, also across a crash.

A fleet goes on all the while. The trouble is one more emitter's, which numbers its batches as the test says;
`/streams` is compared for all of them and in full, and so are the series that tell of gaps.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from api.answers import Stream
from api.client import Client
from deploy.broker import create_topic, delete_topic
from deploy.broker.kafka import KafkaBroker
from processor.durability.inspection import inspect
from producer.events import CacheEventBatch, EventType, Tier
from producer.sinks.kafka import KafkaSink
from producer.wire import encode_rows
from tests.brokers import RunningBroker
from tests.chaos.fleet import (
    BACKEND,
    CHUNK,
    INSTANCES,
    Fleet,
    check_answers,
    entry,
    hearing,
    listen,
    progress,
)
from tests.e2e.asking import by_instance, metric, ready
from tests.e2e.processes import Process, blendstream, server
from tests.model.directory import Directory
from tests.processor.ingest.reading import send
from tests.producer.topics import batches_in, records
from tests.waiting import wait_for

pytestmark = pytest.mark.broker("kafka")

ODD, QUIET = "odd", "quiet"
"""The emitter with the trouble, and one that hardly says anything."""
VERDICT = 15.0
"""Seconds in which it must be said what is lost."""

Range = tuple[int, int | None, str]
"""First and last batch that are lost, and why."""
Losses = Mapping[str, Sequence[Range]]
"""By emitter; those that lost nothing are not in it."""


class Scene:
    """A fleet and a processor at work on one topic; the processor may be killed and started again."""

    def __init__(
        self,
        broker: RunningBroker,
        topic: str,
        fleet: Fleet,
        state: Path,
        stack: ExitStack,
        more: Sequence[str],
    ) -> None:
        self.broker = broker
        self.topic = topic
        self.fleet = fleet
        self.state = state
        self._sent: defaultdict[str, list[CacheEventBatch]] = defaultdict(list)
        self._stack = stack
        self._arguments = [*hearing(broker.bootstrap, topic, state, 0.5), *more]

    def start(self) -> None:
        """Start the processor, and wait until it is ready."""
        self.process: Process
        self.client: Client
        self.process, self.client = self._stack.enter_context(server(*self._arguments))
        wait_for(lambda: ready(self.client), 60, "the server is ready")

    def crash(self) -> None:
        """Kill the processor some time after a checkpoint, and start it again."""
        self.client.checkpoint()
        self.process.kill()
        self.start()
        assert any("restored" in line for line in self.process.lines)

    def send(self, seqs: Iterable[int], instance: str = ODD, partition: int = 0) -> None:
        """Batches beside the fleet's; the model will hear them in order of their numbers."""
        batches = [batch(seq, instance) for seq in seqs]
        values = [encode_rows([one]) for one in batches]
        send(self.broker, self.topic, values, instance.encode(), partition)
        self._sent[instance] = sorted([*self._sent[instance], *batches], key=lambda one: one.seq)

    def sent(self) -> dict[str, int]:
        """The last batch of everyone."""
        return {**self.fleet.sent, **{name: batches[-1].seq for name, batches in self._sent.items()}}

    def stream(self, instance: str = ODD) -> Stream:
        return self.client.stream(instance)

    def wait_for_verdict(self, *lost: Range, instance: str = ODD) -> None:
        """Until all is read, exactly these ranges are lost and nothing is looked for any more."""
        self.wait_until_read(instance)

        def judged() -> bool:
            stream = self.stream(instance)
            return at_rest([stream]) and lost_of(stream) == list(lost)

        wait_for(judged, VERDICT, f"lost {lost}")

    def wait_until_read(self, instance: str = ODD) -> None:
        last = self.sent()[instance]
        wait_for(lambda: (progress(self.client) or {}).get(instance, 0) >= last, 30, f"{instance} is read")

    def stays(self) -> None:
        """What the processor says of the stream is the same after a crash."""
        before = self.stream()
        self.crash()
        assert self.stream() == before

    def conclude(self, lost: Losses, never_heard: Losses | None = None) -> None:
        """End the load: what is lost, what is said of it and the state are as they should be, and stay so.

        The model hears all but what is lost, and what `never_heard` names where a loss was accepted.
        """
        self.fleet.stop()
        wait_for(lambda: progress(self.client) == self.sent(), 60, "all is read")
        model = Directory(CHUNK)
        skipped = lost if never_heard is None else never_heard
        everyone = [self.fleet.taken, *self._sent.values()]
        listen(model, (one for batches in everyone for one in batches if not is_in(one, skipped)))
        self._check(model, lost)
        before = self.client.streams()
        self.crash()
        assert self.client.streams() == before
        self._check(model, lost)

    def _check(self, model: Directory, lost: Losses) -> None:
        wait_for(lambda: at_rest(self.client.streams()), VERDICT, "all searches end")
        streams = self.client.streams()
        sent = self.sent()
        assert [
            (s.instance_id, s.incarnation, s.epoch, s.last_seq, s.gap_detected, s.conflict, s.missing)
            for s in streams
        ] == [(name, 1, 1, sent[name], name in lost, False, []) for name in sorted(sent)]
        assert {s.instance_id: lost_of(s) for s in streams if s.lost} == lost
        counts = {name: sum(map(length, lost.get(name, ()))) for name in sent}
        assert by_instance(self.client, "blendstream_lost_batches") == counts
        assert by_instance(self.client, "blendstream_missing_batches") == dict.fromkeys(sent, 0)
        assert by_instance(self.client, "blendstream_gap_detected") == {name: name in lost for name in sent}
        check_answers(self.client, model)


def batch(seq: int, instance: str) -> CacheEventBatch:
    """A batch beside the fleet's: most store a chunk, each fifth deletes the one of three batches before."""
    kind, number = (EventType.DELETE, seq - 3) if seq % 5 == 0 else (EventType.STORE, seq)
    entries = [entry(instance, kind, number)]
    return CacheEventBatch(instance, 1, seq, kind, Tier.L1, BACKEND, entries, ts=1_700_000_000.0 + seq)


def at_rest(streams: Iterable[Stream]) -> bool:
    """Whether nothing is looked for."""
    return not any(stream.missing or stream.replay for stream in streams)


def is_in(batch: CacheEventBatch, losses: Losses) -> bool:
    return any(first <= batch.seq <= (last or first) for first, last, _ in losses.get(batch.instance_id, ()))


def length(lost: Range) -> int:
    first, last, _ = lost
    return 0 if last is None else last - first + 1


def lost_of(stream: Stream) -> list[Range]:
    assert all(lost.incarnation == stream.incarnation for lost in stream.lost)
    return [(lost.first, lost.last, lost.reason or "") for lost in stream.lost]


@contextmanager
def scene(broker: RunningBroker, topic: str, folder: Path, *more: str) -> Iterator[Scene]:
    """A fleet at work and a processor that is ready, with checkpoints every half second."""
    # So that a partition that is added is written to at once.
    sink = KafkaSink(broker.bootstrap, topic, properties={"topic.metadata.refresh.interval.ms": "200"})
    fleet = Fleet(sink)
    with ExitStack() as stack:
        made = Scene(broker, topic, fleet, folder / "state", stack, more)
        fleet.start()
        try:
            made.start()
            yield made
        finally:
            if fleet.is_alive():
                fleet.stop()


@pytest.mark.parametrize("topic", [4], indirect=True)
def test_a_hole_that_was_never_produced_is_exactly_that_range_and_what_comes_after_all_repairs_it(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    with scene(kafka_broker, topic, tmp_path) as made:
        made.send([*range(1, 7), *range(13, 31)])
        made.wait_until_read()
        assert metric(made.client, "blendstream_gap_detected", instance_id=ODD) == 1
        # It may have searched by now, or have to do so when it is back.
        made.crash()
        made.wait_for_verdict((7, 12, "never_produced"))
        # What 10 deleted is not brought back by 7, which comes later.
        made.send([10])
        made.wait_for_verdict((7, 9, "never_produced"), (11, 12, "never_produced"))
        made.send([7, 8, 9, 12])
        made.wait_for_verdict((11, 11, "never_produced"))
        made.stays()
        made.send([11])
        wait_for(lambda: not made.stream().gap_detected, 10, "the flag falls")
        assert metric(made.client, "blendstream_gap_detected", instance_id=ODD) == 0
        made.send(range(33, 41))
        made.wait_for_verdict((31, 32, "never_produced"))
        made.conclude({ODD: [(31, 32, "never_produced")]})


POISON: dict[int, bytes | None] = {
    8: b"no JSON at all",
    16: encode_rows([CacheEventBatch("another", 1, 16, EventType.STORE, Tier.L1, BACKEND)]),
    17: encode_rows([batch(17, ODD)]).replace(b'"l1"', b'"l3"'),
    24: b"",
    25: None,
}
"""Records in place of batches: not JSON, of another emitter than the key's, of no tier, empty."""


REASONS = ("JSON", "another", "tier", "truncated", "truncated")
"""What is said of them."""


@pytest.mark.parametrize("topic", [4], indirect=True)
def test_a_poison_record_costs_its_own_batch_and_no_other(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    dead = f"{topic}-dead"
    create_topic(kafka_broker.bootstrap, dead)
    headers: dict[str, str | bytes | None] = {"trace": b"\x00\xff", "empty": None}
    lost: list[Range] = [(8, 8, "undecodable"), (16, 17, "undecodable"), (24, 25, "undecodable")]
    with scene(kafka_broker, topic, tmp_path, "--kafka-dead-letter-topic", dead) as made:
        for seq in range(1, 41):
            if seq in POISON:
                send(kafka_broker, topic, [POISON[seq]], ODD.encode(), headers=headers)
            else:
                made.send([seq])
        made.wait_until_read()
        assert metric(made.client, "blendstream_ingest_batches_total", result="undecodable") == len(POISON)
        with reader_of(kafka_broker) as reader:
            copies = TopicPartition(dead, 0)
            wait_for(lambda: end_of(reader, copies) == len(POISON), 20, "all are copied")
        # What will be lost is hardly searched for by now.
        made.crash()
        made.wait_for_verdict(*lost)
        made.conclude({ODD: lost})
    letters = records(kafka_broker.bootstrap, dead)
    delete_topic(kafka_broker.bootstrap, dead)
    assert [(one.key(), one.value()) for one in letters] == [
        (ODD.encode(), value) for value in POISON.values()
    ]
    for letter, reason in zip(letters, REASONS, strict=True):
        told = dict(letter.headers() or ())
        assert headers.items() <= told.items()
        assert reason in str(told["blendstream.reason"])
        assert (told["blendstream.topic"], told["blendstream.partition"]) == (topic.encode(), b"0")


@pytest.mark.parametrize("killed", [False, True])
def test_partitions_added_under_load_leave_no_gap(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path, killed: bool
) -> None:
    """They are noticed by the running processor, within ten seconds, or by one that starts."""
    with scene(kafka_broker, topic, tmp_path) as made:
        made.send(range(1, 11))
        made.wait_until_read()
        admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(20)
        added = [TopicPartition(topic, partition) for partition in range(1, 8)]
        with reader_of(kafka_broker) as reader:
            wait_for(lambda: any(end_of(reader, one) for one in added), 20, "an emitter moves there")
        made.send(range(11, 21), partition=5)
        made.send(range(21, 31), partition=0)
        if killed:
            made.crash()
        made.wait_until_read()

        def whole() -> bool:
            assert made.stream().lost == [], "nothing is given up that a new partition may hold"
            return gaps(made.client) == gaps(made.client, "_cleared")

        wait_for(whole, 20, "no flag is up")
        made.conclude({})


def gaps(client: Client, which: str = "") -> float | None:
    return metric(client, f"blendstream_gaps{which}_total")


@contextmanager
def reader_of(broker: RunningBroker) -> Iterator[Consumer]:
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    try:
        yield reader
    finally:
        reader.close()


def end_of(reader: Consumer, partition: TopicPartition) -> int:
    """The offset behind the last record; 0 while the partition has no leader yet."""
    try:
        return int(reader.get_watermark_offsets(partition, timeout=10)[1])
    except KafkaException:
        return 0


def cut_by_hand(made: Scene) -> None:
    """Delete all that the log holds by now."""
    admin = AdminClient({"bootstrap.servers": made.broker.bootstrap})
    ends = [TopicPartition(made.topic, partition, OFFSET_END) for partition in range(4)]
    for answer in admin.delete_records(ends).values():
        answer.result(20)


def cut_by_retention(made: Scene) -> None:
    """Let the broker drop what is old until all that there is now is gone; then let it keep the rest."""
    partition = TopicPartition(made.topic, 0)
    with reader_of(made.broker) as reader:
        end = wait_for(lambda: end_of(reader, partition), 20, "the log's end")
        keep(made, 500)
        wait_for(lambda: reader.get_watermark_offsets(partition, timeout=10)[0] >= end, 30, "the log is cut")
        keep(made, -1)
        wait_for(lambda: age_of_log(reader, made.topic) > 2, 30, "nothing more is dropped")


def age_of_log(reader: Consumer, topic: str) -> float:
    """For how many seconds the first record has been there."""
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    message = reader.poll(5)
    return 0 if message is None or message.error() else time.time() - message.timestamp()[1] / 1000


def keep(made: Scene, milliseconds: int) -> None:
    """Set the retention of the topic."""
    setting = ConfigEntry("retention.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, made.topic, incremental_configs=[setting])
    admin = AdminClient({"bootstrap.servers": made.broker.bootstrap})
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(20)


def outlive(made: Scene, cut: Callable[[Scene], None]) -> None:
    """Down while the log goes on and loses what was never read."""
    made.send(range(1, 11))
    made.send(range(1, 6), QUIET)
    for name in (ODD, QUIET):
        made.wait_until_read(name)
    made.client.checkpoint()
    made.process.kill()
    made.send(range(11, 21))
    gone = dict(made.fleet.sent)
    wait_for(lambda: all(made.fleet.sent[name] > gone[name] + 20 for name in INSTANCES), 20, "unread batches")
    cut(made)
    made.send(range(21, 31))
    lost = lost_by(made)
    assert lost[ODD] == [(11, 20, "before_log")]
    assert all(length(one) > 0 for [one] in lost.values())
    made.start()
    for name, ranges in lost.items():
        made.wait_for_verdict(*ranges, instance=name)
    # Nobody knows whether it said more; what it says next tells.
    made.wait_for_verdict((6, None, "before_log"), instance=QUIET)
    made.stays()
    made.send(range(6, 8), QUIET)
    made.wait_for_verdict(instance=QUIET)
    for name in (ODD, "a"):
        blendstream("accept-loss", name, "--url", made.client.url)
        assert not made.stream(name).gap_detected
    kept = {name: ranges for name, ranges in lost.items() if name not in (ODD, "a")}
    made.conclude(kept, never_heard=lost)


def lost_by(made: Scene) -> dict[str, list[Range]]:
    """What lies between the checkpoint's cursors and the first batches of the log; all lost something."""
    current, *_ = inspect(made.state)
    cursors = {stream["instance_id"]: stream["last_seq"] for stream in current.documents["gate"]["streams"]}
    first: dict[str, int] = {}
    with reader_of(made.broker) as reader:
        partitions = reader.list_topics(made.topic, timeout=10).topics[made.topic].partitions
        reader.assign([TopicPartition(made.topic, partition, OFFSET_BEGINNING) for partition in partitions])

        def all_are_found() -> bool:
            message = reader.poll(0.5)
            for one in batches_in([] if message is None else [message]):
                first.setdefault(one.instance_id, one.seq)
            return first.keys() == {ODD, *INSTANCES}

        wait_for(all_are_found, 30, "a batch of everyone")
    return {name: [(cursors[name] + 1, seq - 1, "before_log")] for name, seq in first.items()}


@pytest.mark.parametrize("topic", [4], indirect=True)
def test_what_was_deleted_from_the_log_while_nobody_read_is_exactly_what_is_lost(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    with scene(kafka_broker, topic, tmp_path) as made:
        outlive(made, cut_by_hand)


@pytest.fixture
def forgetful_broker() -> Iterator[RunningBroker]:
    """A broker that looks for old segments all the time."""
    often = {"log.retention.check.interval.ms": "100", "log.initial.task.delay.ms": "100"}
    with KafkaBroker(settings=often) as running:
        yield RunningBroker(running.bootstrap, "kafka")


@pytest.mark.needs("java")
def test_what_outlived_its_retention_while_nobody_read_is_exactly_what_is_lost(
    forgetful_broker: RunningBroker, tmp_path: Path
) -> None:
    create_topic(forgetful_broker.bootstrap, "short", config={"segment.ms": "200"})
    with scene(forgetful_broker, "short", tmp_path) as made:
        outlive(made, cut_by_retention)
