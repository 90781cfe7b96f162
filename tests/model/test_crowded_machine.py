"""An emitter with more ranges than are kept: the oldest close and merge, and no batch is forgotten by it.

How ranges merge shows in no number of the design, so nothing here says which of them do. What holds however
they do is held against a plain account of single batches.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from processor.ingest import ranges
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.gate import EventGate
from processor.ingest.outcomes import IngestResult
from processor.ingest.ranges import LossReason
from processor.ingest.search import Verdict
from processor.ingest.source import Position
from processor.ingest.stream import StreamStatus
from tests.processor.ingest.recorder import Recorder, batch

ADMITTED, REPAIRED = IngestResult.ADMITTED, IngestResult.REPAIRED
WINDOW = 10.0
Name = tuple[int, int]
"""(incarnation, seq)"""


class CrowdedMachine(RuleBasedStateMachine):
    """One emitter that leaves holes all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.now = 100.0
        self.incarnation, self.last = 1, 0
        self.lacking: set[Name] = set()
        self.recorder = Recorder()
        self.gate = self.new_gate()

    def new_gate(self) -> EventGate:
        return EventGate(Broadcaster([self.recorder]), repair_window=WINDOW, clock=lambda: self.now)

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(kept=st.integers(2, 5))
    def so_many_are_kept(self, kept: int) -> None:
        self.patch.setattr(ranges, "MAX_RANGES", kept)
        self.kept = kept
        self.batches_come_with_holes_between_them([0])

    def offer(self, incarnation: int, seq: int) -> IngestResult:
        return self.gate.offer(batch(seq, incarnation), Position(0, seq))

    @property
    def status(self) -> StreamStatus:
        status = self.gate.stream("server-1")
        assert status is not None
        return status

    @rule(skipped=st.lists(st.integers(0, 3), min_size=1, max_size=6))
    def batches_come_with_holes_between_them(self, skipped: list[int]) -> None:
        for hole in skipped:
            self.lacking |= {(self.incarnation, self.last + 1 + i) for i in range(hole)}
            self.last += hole + 1
            assert self.offer(self.incarnation, self.last) is ADMITTED

    @rule(skipped=st.integers(0, 3))
    def it_restarts(self, skipped: int) -> None:
        self.incarnation, self.last = self.incarnation + 1, 0
        self.batches_come_with_holes_between_them([skipped])

    @rule(data=st.data(), by_replay=st.booleans())
    def a_batch_that_is_lacking_comes(self, data: st.DataObject, by_replay: bool) -> None:
        if not self.lacking:
            return
        name = data.draw(st.sampled_from(sorted(self.lacking)))
        before = len(self.recorder.seqs)
        made, place = batch(name[1], name[0]), Position(0, name[1])
        result = self.gate.repairs.offer(made, place) if by_replay else self.gate.offer(made, place)
        assert len(self.recorder.seqs) - before == (result is REPAIRED)
        assert result is not ADMITTED
        if result is REPAIRED:
            self.lacking.discard(name)

    @rule(data=st.data())
    def a_batch_that_was_applied_comes_again(self, data: st.DataObject) -> None:
        applied = {(self.incarnation, seq) for seq in range(1, self.last + 1)} - self.lacking
        if applied:
            before = len(self.recorder.seqs)
            assert self.offer(*data.draw(st.sampled_from(sorted(applied)))) is IngestResult.DUPLICATE
            assert len(self.recorder.seqs) == before

    @rule(data=st.data(), more=st.integers(0, 6))
    def a_search_finds_nothing(self, data: st.DataObject, more: int) -> None:
        for gap in self.gate.repairs.gaps():
            held = data.draw(st.sampled_from(gap.wanted))
            part = held.part(held.first, held.first + more)
            assert part is not None and part.last is not None
            verdict = Verdict(part.first, part.last, LossReason.NEVER_PRODUCED)
            self.gate.repairs.give_up("server-1", held, [verdict])

    @rule(passed=st.sampled_from((0.0, 1.0, WINDOW + 1)))
    def time_passes(self, passed: float) -> None:
        self.now += passed
        self.gate.tick(self.now, 0.0, 0.0)

    @rule()
    def everything_is_accepted(self) -> None:
        status = self.gate.accept_loss("server-1", first=1)
        assert not (status.missing or status.lost or status.gap_detected)
        self.lacking.clear()

    @rule()
    def it_is_killed_and_restored(self) -> None:
        kept = json.loads(json.dumps(self.gate.capture()))
        self.gate = self.new_gate()
        self.gate.restore(kept)
        assert self.gate.capture() == kept

    @invariant()
    def no_more_ranges_are_kept_than_may_be_and_they_lack_what_never_came(self) -> None:
        if not hasattr(self, "kept"):
            return
        status = self.status
        assert len(self.gate.capture()["streams"][0]["ranges"]) <= self.kept
        assert status.missing_batches + status.lost_batches == len(self.lacking)
        missing = {seq for first, last in status.missing for seq in range(first, last + 1)}
        assert missing <= {seq for _, seq in self.lacking}
        assert status.last_seq == self.last
        spans = [*status.missing, *((held.first, held.last) for held in status.lost)]
        for incarnation, seq in self.lacking:
            if incarnation == self.incarnation:
                assert any(first <= seq <= (last or seq) for first, last in spans)

    @invariant()
    def whoever_lacks_something_of_now_has_a_gap(self) -> None:
        if hasattr(self, "kept"):
            now = any(incarnation == self.incarnation for incarnation, _ in self.lacking)
            assert self.status.gap_detected or not now


TestCrowded = CrowdedMachine.TestCase
