"""The gate against the model: every result, every stream's status, every admission and the totals."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from processor.batch import Admission
from processor.ingest.broadcaster import EventConsumer
from processor.ingest.outcomes import IngestResult
from processor.ingest.stream import StreamStatus
from tests.model.gate import Admitted, Gate, Refused, Result
from tests.model.machines import WINDOW, Sent, Utterance, instances, utterances
from tests.model.stream import Stream
from tests.model.two_gates import TwoGates


@pytest.fixture(autouse=True)
def _refusals_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of tracebacks are slow to format."""
    caplog.set_level(logging.CRITICAL, "processor.ingest.broadcaster")


Heard = tuple[object, ...]
LISTENERS = ("first", "second")


@dataclass
class Ears:
    """What a consumer was told, and for whom it still keeps tombstones; it may refuse what it is told."""

    name: str
    heard: list[Heard] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    refuses: int = 0
    """So many of the batches to come are refused."""

    def consume(self, admission: Admission) -> None:
        self._refuse()
        batch = admission.batch
        self._note(
            (batch.instance_id, batch.incarnation, batch.seq, batch.event_type, len(batch.columns)),
            (batch.event_time, batch.generation, admission.epoch),
            (admission.repaired, admission.l1_void, admission.keep_tombstones, admission.keep_contents),
        )

    def _refuse(self) -> None:
        if self.refuses:
            self.refuses -= 1
            raise Refused

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
        self._refuse()
        batch = admitted.batch
        self._note(
            (batch.instance_id, batch.incarnation, batch.seq, batch.event_type, len(batch.entries)),
            (admitted.event_time, admitted.generation, admitted.epoch),
            (admitted.repaired, admitted.l1_void, admitted.keep_tombstones, admitted.keep_contents),
        )


class GateMachine(TwoGates):
    def start(self) -> None:
        self.told = [ModelEars(name) for name in LISTENERS]
        self.tells = [Ears(name) for name in LISTENERS]
        self.gate = Gate(*self.told, repair_window=WINDOW, seekable=self.setting.seekable)
        self.engine_gate = self.new_engine_gate()
        self.results: Counter[Result] = Counter()

    def consumers(self) -> list[EventConsumer]:
        return list(self.tells)

    def deliver(self, sent: Sent) -> Result:
        result = super().deliver(sent)
        self.results[result] += 1
        return result

    def read_again(self, sent: Sent) -> Result:
        result = super().read_again(sent)
        self.results[result] += result is Result.REPAIRED
        return result

    def die_and_return(self) -> None:
        super().die_and_return()
        self.results.clear()

    @rule(listener=st.integers(0, len(LISTENERS) - 1), batches=st.sampled_from((0, 1, 2, 9)))
    def a_consumer_refuses_what_comes_next(self, listener: int, batches: int) -> None:
        self.told[listener].refuses = self.tells[listener].refuses = batches

    @rule(instance=instances, utterance=utterances, listener=st.integers(0, len(LISTENERS) - 1))
    def a_consumer_will_not_have_a_batch_at_all(
        self, instance: str, utterance: Utterance, listener: int
    ) -> None:
        self.a_consumer_refuses_what_comes_next(listener, 9)
        self.emits(instance, [replace(utterance, arrives=True)])
        self.time_passes(0.0, 0, 5)
        self.a_consumer_refuses_what_comes_next(listener, 0)

    @rule(gap=st.none() | st.booleans(), nobody=instances.map(lambda name: name + "?"))
    def streams_are_asked_for(self, gap: bool | None, nobody: str) -> None:
        expected = [name for name, s in sorted(self.gate.streams.items()) if gap in (None, s.gap_detected)]
        assert [status.instance_id for status in self.engine_gate.streams(gap)] == expected
        assert self.engine_gate.stream(nobody) is None

    @precondition(lambda self: hasattr(self, "setting"))
    @invariant()
    def consumers_hear_the_same(self) -> None:
        for tells, told in zip(self.tells, self.told, strict=True):
            assert tells.heard == told.heard
            assert tells.waiting == told.waiting
            assert tells.refuses == told.refuses
            tells.heard.clear()
            told.heard.clear()

    @precondition(lambda self: hasattr(self, "setting"))
    @invariant()
    def streams_show_the_same(self) -> None:
        statuses = self.engine_gate.streams()
        assert [status.instance_id for status in statuses] == sorted(self.gate.streams)
        for status in statuses:
            assert_same_stream(self.gate.streams[status.instance_id], status)
            assert self.engine_gate.stream(status.instance_id) == status

    @precondition(lambda self: hasattr(self, "setting"))
    @invariant()
    def totals_are_the_same(self) -> None:
        counters = self.engine_gate.counters()
        assert counters.batches == {result.value: self.results[Result(result)] for result in IngestResult}
        assert (counters.gaps, counters.gaps_cleared) == (
            self.gate.gaps,
            self.gate.gaps_cleared,
        )


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
