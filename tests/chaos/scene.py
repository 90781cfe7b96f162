"""A fleet at work, a processor that may crash, and one more emitter that numbers its batches as a test says.

`/streams` is compared for all of them and in full, and so are the series that tell of gaps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from api.answers import Stream
from api.client import Client
from producer.events import CacheEventBatch, EventType, Tier
from producer.sinks.kafka import KafkaSink
from producer.wire import encode_rows
from tests.brokers import RunningBroker
from tests.chaos.fleet import (
    BACKEND,
    CHUNK,
    Fleet,
    check_answers,
    entry,
    hearing,
    listen,
    progress,
)
from tests.e2e.asking import by_instance, ready
from tests.e2e.processes import Process, server
from tests.model.directory import Directory
from tests.processor.ingest.reading import send
from tests.waiting import wait_for

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
            (s.instance_id, s.incarnation, s.last_seq, s.gap_detected, s.conflict, s.missing) for s in streams
        ] == [(name, 1, sent[name], name in lost, False, []) for name in sorted(sent)]
        # Where another partition was unread when a stream began, room is left below its first epoch.
        assert all(s.epoch >= 1 for s in streams)
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
