"""An emitter on a spool, in a process of its own that does as it is told.

For each line on its standard input, a number, it makes as many batches, one store each, and answers with its
counters. It may be killed at any point, and started again on the same folder.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from producer.emitter import CacheEventEmitter, EmitterCounters
from producer.events import ObjectKey, Tier
from producer.sinks.kafka_carrier import KafkaCarrier
from producer.sinks.spool import SpoolCounters, SpoolSink
from tests.chaos.fleet import BACKEND, MODEL, RANK

INSTANCE = "a"
CHUNK = 256
MEMORY = 64 * 2**10
"""Bytes that may wait in memory while the disk is full: some forty batches."""


class Counters(msgspec.Struct):
    """What the emitter and its spool have counted."""

    emitter: EmitterCounters
    spool: SpoolCounters


class SpoolingEmitter:
    """The process, seen from outside."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def emit(self, batches: int) -> Counters:
        """Have so many batches made; the counters after that."""
        self.ask(batches)
        return self.answer()

    def ask(self, *batches: int) -> None:
        """Have so many batches made, one lot after the other, and do not wait for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(b"%d\n" % lot for lot in batches))
        self.process.stdin.flush()

    def answer(self) -> Counters:
        """The counters after the next lot."""
        assert self.process.stdout is not None
        return msgspec.json.decode(self.process.stdout.readline(), type=Counters)


@contextmanager
def spooling(
    folder: Path, bootstrap: str, topic: str, incarnation: int, within: Sequence[str]
) -> Iterator[SpoolingEmitter]:
    """Such a process, once it is up; killed at the end."""
    own = [sys.executable, "-m", "tests.chaos.spooling", str(folder), bootstrap, topic, str(incarnation)]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [*within, "env", "-C", str(root), *own], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        try:
            yield SpoolingEmitter(process)
        finally:
            process.kill()


def key(incarnation: int, seq: int) -> ObjectKey:
    """What the batch of that number stores."""
    return ObjectKey(incarnation.to_bytes(16, "big") + seq.to_bytes(16, "big"), MODEL, RANK)


def main(folder: str, bootstrap: str, topic: str, incarnation: int) -> None:
    sink = SpoolSink(Path(folder), KafkaCarrier(bootstrap, topic), memory_bytes=MEMORY)
    emitter = CacheEventEmitter(sink, INSTANCE, incarnation, flush_interval=3600, idle_interval=3600)
    seq = 0
    for line in sys.stdin:
        for _ in range(int(line)):
            seq += 1
            stored = key(incarnation, seq)
            emitter.on_tokens([stored.chunk_hash], [range(seq, seq + CHUNK)], [0])
            emitter.on_store(Tier.L2, BACKEND, [stored], [seq])
            emitter.flush(0)
        sys.stdout.buffer.write(msgspec.json.encode(Counters(emitter.counters(), sink.counters())) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
