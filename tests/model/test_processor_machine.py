"""The whole processor against the whole model: the engine's gate feeds the engine's directory."""

from __future__ import annotations

from processor.ingest.broadcaster import Broadcaster
from processor.ingest.gate import EventGate
from tests.model.gate import Gate
from tests.model.machines import SKEW, WINDOW, Sent
from tests.model.test_directory_machine import DirectoryMachine
from tests.model.test_gate_machine import TwoGates


class ProcessorMachine(DirectoryMachine):
    def connect(self) -> None:
        self.gate = Gate(self.model, WINDOW, self.setting.seekable)
        self.broadcaster = Broadcaster([self.engine])
        self.engine_gate = EventGate(
            self.broadcaster,
            repair_window=WINDOW,
            clock=lambda: self.now,
            seekable=self.setting.seekable,
        )

    def deliver(self, sent: Sent) -> None:
        TwoGates(self.gate, self.engine_gate).offer(sent, self.now)
        assert not self.broadcaster.failures

    def drop_instance(self, instance_id: str, mark: dict[int, int] | None) -> None:
        super().drop_instance(instance_id, mark)
        self.engine_gate.drop_instance(instance_id, mark)

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
        self.engine_gate.accept_loss(instance_id, incarnation, first, last)

    def lose_tails(self, partition: int) -> None:
        super().lose_tails(partition)
        self.engine_gate.lose_tails(partition)

    def tick(self, watermark: float) -> None:
        super().tick(watermark)
        self.engine_gate.tick(self.now, watermark, SKEW)


TestProcessor = ProcessorMachine.TestCase
