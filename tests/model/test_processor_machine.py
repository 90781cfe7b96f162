"""The whole processor against the whole model: the engine's gate feeds the engine's directory."""

from __future__ import annotations

from hypothesis.stateful import invariant, precondition

from processor.ingest.broadcaster import EventConsumer
from tests.model.directory_machine import DirectoryMachine
from tests.model.gate import Gate
from tests.model.machines import WINDOW
from tests.model.two_gates import TwoGates


class ProcessorMachine(TwoGates, DirectoryMachine):
    def connect(self) -> None:
        self.gate = Gate(self.model, repair_window=WINDOW, seekable=self.setting.seekable)
        self.engine_gate = self.new_engine_gate()

    def consumers(self) -> list[EventConsumer]:
        return [self.engine]

    @precondition(lambda self: hasattr(self, "setting"))
    @invariant()
    def nothing_fails(self) -> None:
        assert not self.broadcaster.failures


TestProcessor = ProcessorMachine.TestCase
