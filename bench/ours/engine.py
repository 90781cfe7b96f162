"""Builds the gate and the directory behind it as the service does, less HTTP and the views beside them."""

from __future__ import annotations

import time

from bench import workload
from bench.ours.wire import column_record
from processor.batch import EventBatch
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.decode import Decoder
from processor.ingest.gate import EventGate
from processor.state.directory import KeyDirectory
from producer.events import Namespace

NAMESPACE = Namespace(workload.MODEL)


def build(max_chunks: int) -> tuple[Decoder, EventGate, KeyDirectory]:
    """A decoder, a gate and the directory behind it, with blend lookup on."""
    directory = KeyDirectory(chunk_size=workload.CHUNK_SIZE, max_chunks=max_chunks, enable_blend=True)
    gate = EventGate(Broadcaster([directory]), repair_window=3600.0, clock=time.time)
    return Decoder(workload.CHUNK_SIZE), gate, directory


def decode(decoder: Decoder, record: bytes) -> list[EventBatch]:
    """A record's batches; every one of the workload says its own time."""
    return decoder.decode(record, record_time=0.0)


def load(decoder: Decoder, gate: EventGate, chunks: int) -> int:
    """Apply the first batches, until `chunks` chunks are stored; returns the number of batches."""
    batches = -(-chunks // workload.BATCH_ENTRIES)
    for number in range(batches):
        gate.offer_all(decode(decoder, column_record(number)))
    return batches
