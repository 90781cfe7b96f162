"""Our checkpoints: how long they hold the stream back, what they cost it meanwhile, how fast one is restored.

By the clock, since what is measured is waiting; beside checkpoints that takes two cores that nobody else
uses, so ingest is also given in processor time.
"""

from __future__ import annotations

import tempfile
import threading
import time
from itertools import count
from pathlib import Path

from bench import workload
from bench.ours import engine
from bench.ours.wire import column_record
from bench.worker import Figures, Parameters, Round, serve
from processor.durability.checkpoint import CheckpointWriter, History, Report
from processor.durability.folder import CheckpointFolder
from processor.durability.restoration import restore
from processor.state.directory import KeyDirectory
from processor.state.snapshot import Shadow

STRETCH = 3.0
"""Seconds of ingest that are measured, alone and beside checkpoints."""
TURNOVER = 100
"""Batches that are stored and deleted again, over and over, meanwhile."""


class _Held:
    """A loaded directory with the folder that its checkpoints go to."""

    def __init__(self, chunks: int) -> None:
        self.max_chunks = 2 * chunks
        self._decoder, self._gate, self.directory = engine.build(self.max_chunks)
        self.batches = engine.load(self._decoder, self._gate, chunks)
        self._seqs = count(self.batches + 1)
        self._keep = tempfile.TemporaryDirectory(prefix="blendstream-bench-")
        self.folder = CheckpointFolder(Path(self._keep.name))
        self.folder.open()
        self._writer = CheckpointWriter(self.folder, self._gate, Shadow(self.directory.parts), {}, History())
        numbers = range(self.batches, self.batches + TURNOVER)
        self._turnover = [column_record(number) for number in numbers]
        self._turnover += [workload.delete_record(number, 1) for number in numbers]

    def write(self) -> Report:
        """Write a checkpoint."""
        return self._writer.write()[0]

    def take(self, record: bytes) -> int:
        """Apply a record's batches as the stream's next ones; returns how many entries they have."""
        entries = 0
        for batch in engine.decode(self._decoder, record):
            batch.seq = next(self._seqs)
            self._gate.offer(batch)
            entries += len(batch.columns)
        return entries

    def ingest(self) -> tuple[float, float]:
        """Seconds an entry over a stretch of turnover: by the clock, and of its thread's processor time."""
        entries, began, worked = 0, time.perf_counter(), time.thread_time()
        while time.perf_counter() - began < STRETCH:
            entries += sum(self.take(record) for record in self._turnover)
        return (time.perf_counter() - began) / entries, (time.thread_time() - worked) / entries

    def ingest_beside_checkpoints(self) -> tuple[float, float, float]:
        """The same while one checkpoint follows the other, and the longest pause in seconds."""
        pauses: list[float] = []
        ending = threading.Event()

        def write() -> None:
            while not ending.is_set():
                pauses.append(self.write().pause)

        writing = threading.Thread(target=write)
        writing.start()
        waited, worked = self.ingest()
        ending.set()
        writing.join()
        return waited, worked, max(pauses)

    def restore(self) -> float:
        """Seconds that restoring the current checkpoint takes."""
        directory = KeyDirectory(
            chunk_size=workload.CHUNK_SIZE, max_chunks=self.max_chunks, enable_blend=True
        )
        began = time.perf_counter()
        restore(self.folder, directory.parts, lambda documents: None)
        took = time.perf_counter() - began
        if directory.stats().num_keys != self.directory.stats().num_keys:
            raise RuntimeError("what was restored is not what was held")
        return took


def prepare(parameters: Parameters) -> Round:
    """Load the directory and write its first two checkpoints, which have everything to write."""
    held = _Held(parameters["chunks"])
    for _ in range(2):
        held.write()

    def run() -> Figures:
        for number in range(held.batches):
            held.take(column_record(number))
        changed = held.write()
        held.take(column_record(0))
        little = held.write()
        alone, worked_alone = held.ingest()
        beside, worked_beside, worst = held.ingest_beside_checkpoints()
        held.write()
        return {
            "changed_pause_ms": changed.pause * 1e3,
            "little_pause_ms": little.pause * 1e3,
            "worst_pause_ms": worst * 1e3,
            "ingest_percent": 100 * alone / beside,
            "work_percent": 100 * worked_alone / worked_beside,
            "restore_s": held.restore(),
        }

    return run


if __name__ == "__main__":
    serve(prepare)
