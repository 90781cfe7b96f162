"""Sources on real brokers with a gate and a recorder behind them, and records to read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from processor.ingest.broadcaster import Broadcaster
from processor.ingest.decode import Decoder
from processor.ingest.gate import EventGate
from processor.ingest.kafka_settings import KafkaSettings
from processor.ingest.kafka_source import KafkaEventSource
from processor.ingest.stream import StreamStatus
from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier
from producer.wire import encode_rows
from tests.brokers import RunningBroker
from tests.processor.ingest.recorder import Recorder
from tests.waiting import wait_for


class Reader:
    """A source with a gate and a recorder behind it."""

    def __init__(self, bootstrap: str, topic: str, **settings: Any) -> None:
        positions = settings.pop("positions", None)
        restored: Reader | None = settings.pop("restored", None)
        decoder: Decoder = settings.pop("decoder", None) or Decoder(256)
        self.recorder = Recorder()
        self.recorder.refuses = settings.pop("refuses", self.recorder.refuses)
        self.gate = EventGate(Broadcaster([self.recorder]))
        self.source = KafkaEventSource(
            self.gate, decoder, KafkaSettings(bootstrap, topic, **settings), positions=positions
        )
        if restored is not None:
            with restored.gate.quiesced():
                self.gate.restore(json.loads(json.dumps(restored.gate.capture())))
                self.source.restore(json.loads(json.dumps(restored.source.freeze()())))
        self.source.start()

    def wait_for_end(self, records: int, timeout: float = 20.0) -> None:
        """Until so many records were read and none is left."""

        def read() -> bool:
            status = self.source.status()
            return status.caught_up and sum(p.position for p in status.partitions) >= records

        wait_for(read, timeout, f"{records} records read, status {self.source.status()}")

    def stream(self, instance_id: str = "server-1") -> StreamStatus:
        status = self.gate.stream(instance_id)
        assert status is not None
        return status


def batch(seq: int, instance_id: str = "server-1", incarnation: int = 1, ts: float = 0.0) -> CacheEventBatch:
    entry = CacheEventEntry(ObjectKey(seq.to_bytes(32, "big"), "llama", 1), 10, range(4), 0)
    return CacheEventBatch(instance_id, incarnation, seq, EventType.STORE, Tier.L1, "dram", [entry], ts=ts)


def send(
    broker: RunningBroker,
    topic: str,
    values: Sequence[bytes | None],
    key: bytes | None = b"server-1",
    partition: int = 0,
    headers: dict[str, str | bytes | None] | None = None,
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value, key, partition=partition, headers=headers)
    assert producer.flush(20) == 0


def records(seqs: Sequence[int], instance_id: str = "server-1", incarnation: int = 1) -> list[bytes]:
    return [encode_rows([batch(seq, instance_id, incarnation)]) for seq in seqs]


def drop_records(broker: RunningBroker, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for answer in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        answer.result(20)
