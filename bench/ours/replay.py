"""Our replay: finds one missing batch in a log of `records` records, by sixteen emitters on eight partitions.

The log lies on a real Kafka where there is Java, and is read with a decoder that cannot read one record in
its middle. A round goes on from what was captured then, with a decoder that can, and asks for a replay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from confluent_kafka import Producer

from bench.worker import Figures, Parameters, Round, serve
from deploy.broker import BrokerKind, create_topic, launch, why_unavailable
from processor.batch import EventBatch
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.decode import DecodeError, Decoder
from processor.ingest.gate import EventGate
from processor.ingest.kafka_settings import KafkaSettings
from processor.ingest.kafka_source import KafkaEventSource
from producer.events import CacheEventBatch, EventType, Tier
from producer.wire import encode_rows

TOPIC = "events"
EMITTERS, PARTITIONS = 16, 8
POISONED = "server-5"
DEADLINE = 900.0
"""Seconds after which a reader that has not come to its end is given up."""


class _Unable(Decoder):
    """Cannot read one batch."""

    def __init__(self, seq: int) -> None:
        super().__init__(256)
        self._seq = seq

    def decode(self, value: bytes, *, record_time: float) -> list[EventBatch]:
        batches = super().decode(value, record_time=record_time)
        if any(batch.seq == self._seq and batch.instance_id == POISONED for batch in batches):
            raise DecodeError((), "not a form that is known")
        return batches


def _log(records: int) -> Iterator[tuple[int, bytes, bytes]]:
    """(partition, key, value) of every record."""
    stand_in = 987_654_321
    names = [f"server-{number}" for number in range(EMITTERS)]
    templates = [
        encode_rows([CacheEventBatch(name, 1, stand_in, EventType.ACCESS, Tier.L1, "", ts=1.0)])
        for name in names
    ]
    for index in range(records):
        number, seq = index % EMITTERS, index // EMITTERS + 1
        value = templates[number].replace(str(stand_in).encode(), str(seq).encode())
        yield number % PARTITIONS, names[number].encode(), value


def _fill(bootstrap: str, records: int) -> None:
    create_topic(bootstrap, TOPIC, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"})
    for partition, key, value in _log(records):
        while True:
            try:
                producer.produce(TOPIC, value, key, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(DEADLINE):
        raise RuntimeError("the broker did not take all records")


def _until(condition: Callable[[], bool]) -> float:
    """Seconds until it holds."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > DEADLINE:
            raise RuntimeError(f"not within {DEADLINE:g} s")
        time.sleep(0.002)
    return time.perf_counter() - began


def _read(source: KafkaEventSource) -> int:
    """Records that replay has read."""
    totals = source.status().replay
    return 0 if totals is None else sum(totals.records.values())


def prepare(parameters: Parameters) -> Round:
    """Fill the log and read it, all but one record."""
    records = parameters["records"]
    kind = BrokerKind.EMBEDDED if why_unavailable(BrokerKind.KAFKA) else BrokerKind.KAFKA
    broker = launch(kind)
    _fill(broker.bootstrap, records)
    settings = KafkaSettings(broker.bootstrap, TOPIC)
    gate = EventGate(Broadcaster([]))
    source = KafkaEventSource(gate, _Unable(records // EMITTERS // 2), settings)
    source.start()
    _until(lambda: source.status().caught_up and sum(source.positions().values()) >= records)
    _until(lambda: any(stream.lost for stream in gate.streams(gap=True)))
    by_itself = _read(source)
    source.stop()
    streams, log = gate.capture(), source.freeze()()

    def run() -> Figures:
        gate = EventGate(Broadcaster([]))
        source = KafkaEventSource(gate, Decoder(256), settings)
        gate.restore(streams)
        source.restore(log)
        source.start()
        try:
            _until(lambda: source.status().caught_up)
            source.replay(POISONED)
            seconds = _until(lambda: not gate.streams(gap=True))
            _until(lambda: source.replay_status(POISONED) is None)
            return {"by_itself": by_itself, "by_hand": _read(source), "seconds": seconds}
        finally:
            source.stop()

    return run


if __name__ == "__main__":
    serve(prepare)
