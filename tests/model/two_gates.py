"""The same events through both gates: the model's and the engine's must answer alike."""

from __future__ import annotations

import json

from processor.ingest.broadcaster import Broadcaster, EventConsumer
from processor.ingest.gate import EventGate
from processor.ingest.ranges import LossReason
from processor.ingest.search import Verdict
from processor.ingest.source import Position
from tests.model.convert import event_batch
from tests.model.gate import Result
from tests.model.machines import SKEW, WINDOW, Fleet, Sent


class TwoGates(Fleet):
    """A fleet that both gates hear of; what listens behind them is up to subclasses."""

    engine_gate: EventGate

    def consumers(self) -> list[EventConsumer]:
        """Who listens behind the engine's gate."""
        raise NotImplementedError

    def new_engine_gate(self) -> EventGate:
        self.broadcaster = Broadcaster(self.consumers())
        gate = EventGate(
            self.broadcaster,
            repair_window=WINDOW,
            clock=lambda: self.now,
            seekable=self.setting.seekable,
        )
        if self.setting.seekable:
            gate.follow(self.log)
            self.gate.log = self.log
        return gate

    def deliver(self, sent: Sent) -> Result:
        expected = super().deliver(sent)
        batch = event_batch(sent.batch, sent.event_time, sent.generation)
        position = None if sent.position is None else Position(*sent.position)
        assert self.engine_gate.offer(batch, position) == expected.value
        return expected

    def read_again(self, sent: Sent) -> Result:
        expected = super().read_again(sent)
        assert sent.position is not None
        batch = event_batch(sent.batch, sent.event_time, sent.generation)
        assert self.engine_gate.repairs.offer(batch, Position(*sent.position)) == expected.value
        return expected

    def give_up(self, instance_id: str, incarnation: int, first: int, last: int, reason: str) -> int:
        gaps = [gap for gap in self.engine_gate.repairs.gaps() if gap.instance_id == instance_id]
        found = 0
        for held in [held for gap in gaps for held in gap.wanted if held.incarnation == incarnation]:
            part = held.part(first, last)
            if part is not None:
                assert part.last is not None
                verdict = Verdict(part.first, part.last, LossReason(reason))
                found += self.engine_gate.repairs.give_up(instance_id, held, [verdict])
        assert found == super().give_up(instance_id, incarnation, first, last, reason)
        return found

    def request(self, instance_id: str, incarnation: int | None, first: int | None, last: int | None) -> None:
        super().request(instance_id, incarnation, first, last)
        again = self.engine_gate.repairs.request(instance_id, incarnation, first, last).reapply
        begin = None if again is None else (again.incarnation, again.first)
        assert begin == self.gate.streams[instance_id].reapply

    def finish(self, instance_id: str) -> None:
        super().finish(instance_id)
        (gap,) = [gap for gap in self.engine_gate.repairs.gaps() if gap.instance_id == instance_id]
        assert gap.reapply is not None
        self.engine_gate.repairs.finish(instance_id, gap.reapply)

    def drop_instance(self, instance_id: str, mark: dict[int, int] | None) -> None:
        known = instance_id in self.gate.streams
        super().drop_instance(instance_id, mark)
        assert self.engine_gate.drop_instance(instance_id, mark) == known

    def register_instance(self, instance_id: str) -> None:
        super().register_instance(instance_id)
        self.engine_gate.register_instance(instance_id)

    def reset(self, instance_id: str) -> None:
        super().reset(instance_id)
        self.engine_gate.reset(instance_id)

    def accept_loss(
        self, instance_id: str, incarnation: int | None, first: int | None, last: int | None
    ) -> None:
        super().accept_loss(instance_id, incarnation, first, last)
        status = self.engine_gate.accept_loss(instance_id, incarnation, first, last)
        assert status == self.engine_gate.stream(instance_id)

    def lose_tails(self, partition: int) -> None:
        super().lose_tails(partition)
        self.engine_gate.lose_tails(partition)

    def lose_log(self) -> None:
        super().lose_log()
        self.engine_gate.lose_log()

    def note_ends(self, ends: dict[int, int]) -> None:
        super().note_ends(ends)
        self.engine_gate.repairs.note_ends(ends, self.now)

    def read_on(self, positions: dict[int, int]) -> None:
        super().read_on(positions)
        self.engine_gate.repairs.read_on(positions)

    def tick(self, watermark: float) -> None:
        super().tick(watermark)
        self.engine_gate.tick(self.now, watermark, SKEW)

    def die_and_return(self) -> None:
        """Another gate goes on from what a checkpoint kept of this one."""
        super().die_and_return()
        kept = json.loads(json.dumps(self.engine_gate.capture()))
        self.engine_gate = self.new_engine_gate()
        self.engine_gate.restore(kept)
