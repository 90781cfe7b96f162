"""The gate against the model: every result, every stream's status, every admission and the totals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from processor.batch import Admission
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.gate import EventGate, IngestResult, Position
from processor.ingest.stream import StreamStatus
from tests.model.convert import event_batch
from tests.model.gate import Admitted, Gate, Result, Stream
from tests.model.machines import SKEW, WINDOW, Fleet, Sent, instances

Heard = tuple[object, ...]


@dataclass
class Ears:
    """What a consumer was told, and for whom it still keeps tombstones."""

    name: str = "ears"
    heard: list[Heard] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)

    def consume(self, admission: Admission) -> None:
        batch = admission.batch
        self._note(
            (batch.instance_id, batch.incarnation, batch.seq, batch.event_type, len(batch.columns)),
            (batch.event_time, batch.generation, admission.epoch),
            (admission.repaired, admission.l1_void, admission.keep_tombstones, admission.keep_contents),
        )

    def _note(self, name: Heard, stamp: tuple[float, int, int], flags: tuple[bool, bool, bool, bool]) -> None:
        self.heard.append((name, stamp, flags))
        if flags[2]:
            self.waiting.add(str(name[0]))

    def fence(self, instance_id: str) -> None:
        self.heard.append(("fence", instance_id))

    def settle(self, instance_id: str) -> None:
        self.waiting.discard(instance_id)

    def expire(self, before: float) -> None:
        self.heard.append(("expire", before))


class ModelEars(Ears):
    """The same for the model's gate, which knows its batches as the contract has them."""

    def consume(self, admitted: Admitted) -> None:  # type: ignore[override]
        batch = admitted.batch
        self._note(
            (batch.instance_id, batch.incarnation, batch.seq, batch.event_type, len(batch.entries)),
            (admitted.event_time, admitted.generation, admitted.epoch),
            (admitted.repaired, admitted.l1_void, admitted.keep_tombstones, admitted.keep_contents),
        )


class TwoGates:
    """The same events through both gates."""

    def __init__(self, model: Gate, engine: EventGate) -> None:
        self.model, self.engine = model, engine

    def offer(self, sent: Sent, now: float) -> Result:
        expected = self.model.offer(
            sent.batch, sent.position, event_time=sent.event_time, generation=sent.generation, now=now
        )
        batch = event_batch(sent.batch, sent.event_time, sent.generation)
        position = None if sent.position is None else Position(*sent.position)
        assert self.engine.offer(batch, position) == expected.value
        return expected


class GateMachine(Fleet):
    model: Gate
    engine: EventGate

    def start(self) -> None:
        self.told, self.tells = ModelEars(), Ears()
        self.model = Gate(self.told, WINDOW, self.setting.seekable)
        self.engine = EventGate(
            Broadcaster([self.tells]),
            repair_window=WINDOW,
            clock=lambda: self.now,
            seekable=self.setting.seekable,
        )
        self.results: Counter[Result] = Counter()
        self.gaps: set[str] = set()
        self.turns = Counter({True: 0, False: 0})

    def deliver(self, sent: Sent) -> None:
        self.results[TwoGates(self.model, self.engine).offer(sent, self.now)] += 1
        self.watch_gaps()

    def drop_instance(self, instance_id: str, mark: dict[int, int] | None) -> None:
        known = self.knows(instance_id)
        self.model.drop_instance(instance_id, mark)
        assert self.engine.drop_instance(instance_id, mark) == known
        self.watch_gaps()

    def register_instance(self, instance_id: str) -> None:
        self.model.register_instance(instance_id)
        self.engine.register_instance(instance_id)

    def reset(self, instance_id: str) -> None:
        self.model.reset(instance_id)
        self.engine.reset(instance_id)
        self.watch_gaps()

    def accept_loss(
        self, instance_id: str, incarnation: int | None, first: int | None, last: int | None
    ) -> None:
        self.model.accept_loss(instance_id, incarnation, first, last)
        status = self.engine.accept_loss(instance_id, incarnation, first, last)
        assert status == self.engine.stream(instance_id)
        self.watch_gaps()

    def lose_tails(self, partition: int) -> None:
        self.model.lose_tails(partition, self.now)
        self.engine.lose_tails(partition)
        self.watch_gaps()

    def tick(self, watermark: float) -> None:
        self.model.tick(self.now, watermark, SKEW)
        self.engine.tick(self.now, watermark, SKEW)
        self.watch_gaps()

    def knows(self, instance_id: str) -> bool:
        return instance_id in self.model.streams

    def watch_gaps(self) -> None:
        """Count how often a stream's flag turned; a call may turn several, each once."""
        gaps = {name for name, stream in self.model.streams.items() if stream.gap_detected}
        self.turns[True] += len(gaps - self.gaps)
        self.turns[False] += len(self.gaps - gaps)
        self.gaps = gaps

    @rule(gap=st.none() | st.booleans(), nobody=instances.map(lambda name: name + "?"))
    def streams_are_asked_for(self, gap: bool | None, nobody: str) -> None:
        expected = [name for name, s in sorted(self.model.streams.items()) if gap in (None, s.gap_detected)]
        assert [status.instance_id for status in self.engine.streams(gap)] == expected
        assert self.engine.stream(nobody) is None

    @precondition(lambda self: hasattr(self, "setting"))
    @invariant()
    def consumers_hear_the_same(self) -> None:
        assert self.tells.heard == self.told.heard
        assert self.tells.waiting == self.told.waiting
        self.tells.heard.clear()
        self.told.heard.clear()

    @precondition(lambda self: hasattr(self, "setting"))
    @invariant()
    def streams_show_the_same(self) -> None:
        statuses = self.engine.streams()
        assert [status.instance_id for status in statuses] == sorted(self.model.streams)
        for status in statuses:
            assert_same_stream(self.model.streams[status.instance_id], status)
            assert self.engine.stream(status.instance_id) == status

    @precondition(lambda self: hasattr(self, "setting"))
    @invariant()
    def totals_are_the_same(self) -> None:
        counters = self.engine.counters()
        assert counters.batches == {result.value: self.results[Result(result)] for result in IngestResult}
        assert (counters.gaps, counters.gaps_cleared) == (self.turns[True], self.turns[False])


def assert_same_stream(model: Stream, status: StreamStatus) -> None:
    assert (status.incarnation, status.epoch) == (model.incarnation, model.epoch)
    assert status.last_seq == model.last_seq
    assert status.gap_detected == model.gap_detected
    assert status.conflict == model.conflict
    assert status.last_event_ts == model.last_event_time
    last_heard = list(model.heard_at.items())[-1] if model.heard_at else (None, None)
    assert (status.partition, status.offset) == last_heard

    missing = [name for name, hole in sorted(model.holes.items()) if hole.reason is None]
    lost = [(*name, hole.reason) for name, hole in sorted(model.holes.items()) if hole.reason is not None]
    tails = [(tail.incarnation, tail.seq, tail.reason) for tail in model.tails.values()]
    assert [seq for a, b in status.missing for seq in range(a, b + 1)] == [seq for _, seq in missing]
    assert [
        (held.incarnation, seq, held.reason)
        for held in status.lost
        if held.last is not None
        for seq in range(held.first, held.last + 1)
    ] == lost
    assert [(h.incarnation, h.first, h.reason) for h in status.lost if h.last is None] == sorted(tails)
    assert (status.missing_batches, status.lost_batches) == (len(missing), len(lost))


TestGate = GateMachine.TestCase
