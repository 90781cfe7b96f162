"""A real emitter in a process of its own, with a spool on disk and a trace of all that it built.

The child makes changes at random until it gets SIGTERM; then it waits until its spool is empty and ends. It
reports its counters on standard output all the while. What was appended to the spool is in the trace
afterwards, so that whatever the trace holds must reach the topic, also if the child is killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from producer.emitter import CacheEventEmitter, EmitterCounters
from producer.events import CacheEventBatch, EventType, Tier
from producer.incarnation import next_incarnation
from producer.sinks.kafka_carrier import KafkaCarrier
from producer.sinks.spool import SpoolCounters, SpoolSink
from producer.sinks.tee import TeeSink
from producer.sinks.trace import TraceSink, read_trace
from tests.chaos.fleet import BACKEND, CHUNKS, INSTANCES, KINDS, PAUSE, SEED, key, offset, text
from tests.waiting import wait_for

FLUSH_INTERVAL = 0.02
REPORT_EVERY = 5
"""Changes from one report to the next."""
DELIVERY_TIMEOUT = 60.0
"""Seconds in which a spool must be empty once its broker is back."""


class Report(msgspec.Struct):
    """The counters of an emitter and of its spool."""

    incarnation: int
    emitter: EmitterCounters
    spool: SpoolCounters


class Emitter:
    """The process of one instance; may be killed, and started again on the same folder."""

    def __init__(self, folder: Path, instance: str, bootstrap: str, topic: str) -> None:
        folder.mkdir()
        self.instance = instance
        self.spool = folder / "spool"
        self._folder = folder
        self._arguments = [str(folder), instance, bootstrap, topic]
        self._reports: list[Report] = []

    def start(self) -> None:
        """Start it, and wait until it emits."""
        self._reports = []
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.emitting", *self._arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=Path(__file__).parents[2],
            )
        self._reader = threading.Thread(target=self._read, name=f"reports of {self.instance}")
        self._reader.start()
        wait_for(lambda: self._reports, 60, f"emitter {self.instance} begins")

    @property
    def report(self) -> Report:
        """Its latest."""
        return self._reports[-1]

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End it on the spot."""
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def end(self) -> Report:
        """Let it deliver what is in its spool and end; its last report."""
        self.process.send_signal(signal.SIGTERM)
        self._reader.join(DELIVERY_TIMEOUT + 10)
        assert self.process.wait(10) == 0, f"emitter {self.instance} did not end in order"
        return self.report

    def traced(self) -> list[CacheEventBatch]:
        """What it has put into its spool."""
        return list(read_trace(self._folder / "trace.jsonl"))

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    self._reports.append(msgspec.json.decode(line, type=Report))


@contextmanager
def emitters(folder: Path, bootstrap: str, topic: str) -> Iterator[list[Emitter]]:
    """An emitter for each instance, at work; those that still run at the end are killed."""
    folder.mkdir()
    fleet = [Emitter(folder / instance, instance, bootstrap, topic) for instance in INSTANCES]
    with ExitStack() as stack:
        for emitter in fleet:
            emitter.start()
            stack.callback(emitter.kill)
        yield fleet


def work(emitter: CacheEventEmitter, source: random.Random) -> None:
    """One change at random."""
    kind, tier = source.choice(KINDS), source.choice(tuple(Tier))
    numbers = [source.randrange(CHUNKS) for _ in range(source.randint(1, 5))]
    keys = [key(emitter.instance_id, number) for number in numbers]
    match kind:
        case EventType.STORE:
            hashes = [one.chunk_hash for one in keys]
            emitter.on_tokens(hashes, [text(n) for n in numbers], [offset(n) for n in numbers])
            emitter.on_store(tier, BACKEND, keys, numbers)
        case EventType.DELETE:
            emitter.on_delete(tier, BACKEND, keys)
        case _:
            emitter.on_access(tier, keys, backend=BACKEND)


def main(folder: Path, instance: str, bootstrap: str, topic: str) -> int:
    """Emit until SIGTERM; 0 if everything was delivered after that."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ending.set())
    incarnation = next_incarnation(folder / "incarnation")
    spool = SpoolSink(folder / "spool", KafkaCarrier(bootstrap, topic))
    sink = TeeSink(spool, TraceSink(folder / "trace.jsonl"))
    source = random.Random(f"{SEED} {instance} {incarnation}")

    def report() -> None:
        line = msgspec.json.encode(Report(incarnation, emitter.counters(), spool.counters())) + b"\n"
        os.write(sys.stdout.fileno(), line)

    with CacheEventEmitter(sink, instance, incarnation, flush_interval=FLUSH_INTERVAL) as emitter:
        changes = 0
        while not ending.wait(PAUSE):
            work(emitter, source)
            changes += 1
            if changes % REPORT_EVERY == 0:
                report()
        delivered = emitter.flush(DELIVERY_TIMEOUT)
        report()
    return 0 if delivered else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
