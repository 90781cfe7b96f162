"""LMCache's coordinator takes our rows, and refuses our columns instead of passing over them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import Consumer

from producer.emitter import CacheEventEmitter
from producer.events import ObjectKey, Tier
from producer.sinks.http import HttpSink
from producer.sinks.kafka import KafkaSink
from producer.wire import Wire, encode_columns, encode_rows
from tests.brokers import RunningBroker
from tests.interop import answers, fleet
from tests.interop.conftest import Ours
from tests.interop.peers import Coordinator, PeerCoordinator
from tests.interop.story import story
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("peer")


def test_columns_are_refused_and_leave_the_cursor_where_it_was(peer: PeerCoordinator) -> None:
    first = story().batches[0]
    peer.fresh()
    assert peer.send("/events", encode_columns([first])).status == 422
    assert answers.stats(peer)["num_keys"] == 0
    # Had the cursor moved, the same batch in rows would now be a duplicate.
    assert peer.send("/events", encode_rows([first])).body == {"applied": 1, "duplicates": 0, "stale": 0}
    assert answers.stats(peer)["num_keys"] == len(first.entries)


def test_rows_and_columns_mean_the_same(peer: PeerCoordinator, ours: Ours) -> None:
    peer.fresh()
    answers.deliver(peer, story())
    expected = answers.everything(peer, [])
    with ours() as by_rows, ours() as by_columns:
        assert by_rows.send("/events", encode_rows(story().batches)).status == 200
        assert by_columns.send("/events", encode_columns(story().batches)).status == 200
        assert answers.everything(by_rows, []) == expected
        assert answers.everything(by_columns, []) == expected


def test_our_emitter_speaks_to_lmcaches_coordinator(peer: PeerCoordinator) -> None:
    chunk = fleet.CHUNKS[0]
    key = ObjectKey(chunk.digest, "model-a", fleet.ranks_of(fleet.NAMESPACES[0])[0])
    peer.fresh()
    with CacheEventEmitter(HttpSink(peer.url), "server-a", 1) as emitter:
        emitter.on_tokens([chunk.digest], [list(chunk.tokens)], [chunk.offset])
        emitter.on_store(Tier.L1, "dram", [key], [4096])
        emitter.on_access(Tier.L1, [key])
        emitter.on_store(Tier.L2, "s3", [key], [4096], shared=True)
        emitter.on_delete(Tier.L1, "dram", [key])
        assert emitter.flush()
        assert emitter.counters().dropped == 0
    found = answers.placements(peer)[key]
    assert [placement["backend"] for placement in found["placements"]] == ["s3"]
    assert found["token_ids"] == list(chunk.tokens)
    assert found["access_count"] == 1


def test_records_of_our_kafka_sink_in_rows_are_what_lmcache_reads(
    kafka_broker: RunningBroker, topic: str, peer: PeerCoordinator, ours: Ours
) -> None:
    sink = KafkaSink(kafka_broker.bootstrap, topic, wire=Wire.ROWS)
    batches = [
        replace(batch, instance_id="server-a", incarnation=1, seq=seq)
        for seq, batch in enumerate(story().batches, start=1)
    ]
    sink.publish(batches)
    assert sink.flush(30.0)
    sink.close()
    peer.fresh()
    with ours() as us:
        for record in records(kafka_broker, topic, len(batches)):
            # LMCache's Kafka source reads a record as `POST /events` reads a body.
            applied = {"applied": 1, "duplicates": 0, "stale": 0}
            assert post(peer, record) == post(us, record) == applied
        assert answers.everything(us, []) == answers.everything(peer, [])


def post(coordinator: Coordinator, record: bytes) -> object:
    return coordinator.send("/events", record).body


def records(broker: RunningBroker, topic: str, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: list[bytes] = []

    def read() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            found.append(value)
        return len(found) == count

    try:
        wait_for(read, timeout=30.0, what=f"{count} records")
    finally:
        consumer.close()
    return found
