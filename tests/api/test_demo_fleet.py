"""The demo's cache servers: what they emit is what they hold, read back from a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from api.demo.cache_server import CacheServer
from api.demo.children import ChildError, ServerProcess
from api.demo.messages import Deliver, Message, Recipe, Report, Serve, Start, Trim
from api.demo.oracle import Held
from api.demo.pool import Pool
from api.demo.withholding import WithholdingSink
from api.demo.workload import CHUNK_TOKENS, LLAMA, QWEN, Request, Server, assembled_prompts
from producer.emitter import CacheEventEmitter
from producer.events import CacheEventBatch, EventType, Tier
from producer.sinks.trace import TraceSink, read_trace
from producer.wire import decode
from tests.brokers import RunningBroker

RECIPE = Recipe(40)


def numbers_of(server: str) -> tuple[int, ...]:
    return tuple(request.number for request in RECIPE.workload().requests if request.server == server)


@pytest.fixture
def fleet(kafka_broker: RunningBroker, topic: str, tmp_path: Path) -> Iterator[dict[str, ServerProcess]]:
    """server-a and server-c, of two models."""
    pool = tmp_path / "pool"
    pool.mkdir()
    servers = {
        name: ServerProcess(Start(name, RECIPE, kafka_broker.bootstrap, topic, tmp_path, pool), tmp_path)
        for name in ("server-a", "server-c")
    }
    yield servers
    for server in servers.values():
        server.stop()


def told(server: ServerProcess, message: Message) -> Report:
    server.ask(message)
    return server.answer()


def log_of(broker: RunningBroker, topic: str) -> list[CacheEventBatch]:
    """Every batch in the topic's one partition, in order."""
    settings = {"group.id": "test", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    batches: list[CacheEventBatch] = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        error = message.error() if message is not None else None
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            consumer.close()
            return batches
        if message is not None:
            value = message.value()
            assert error is None and isinstance(value, bytes), error
            batches += decode(value)
    raise AssertionError(f"the end of {topic} was not reached in time")


def memory_after(batches: list[CacheEventBatch], name: str) -> set[Held]:
    """Replays an emitter's L1 stores and deletes."""
    held: set[Held] = set()
    for batch in batches:
        if batch.instance_id == name and batch.tier is Tier.L1:
            chunks = {Held(entry.key.namespace, entry.key.chunk_hash) for entry in batch.entries}
            if batch.event_type is EventType.STORE:
                held |= chunks
            elif batch.event_type is EventType.DELETE:
                held -= chunks
    return held


def pool_after(batches: list[CacheEventBatch]) -> set[Held]:
    held: set[Held] = set()
    for batch in sorted(batches, key=lambda batch: batch.ts):
        if batch.tier is Tier.L2 and batch.shared:
            chunks = {Held(entry.key.namespace, entry.key.chunk_hash) for entry in batch.entries}
            if batch.event_type is EventType.STORE:
                held |= chunks
            elif batch.event_type is EventType.DELETE:
                held -= chunks
    return held


def test_the_log_tells_what_memory_and_pool_hold(
    fleet: dict[str, ServerProcess], kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    for server in fleet.values():
        server.answer()
    reports = {name: told(server, Serve(numbers_of(name))) for name, server in fleet.items()}
    trimmed = told(fleet["server-a"], Trim(20))
    batches = log_of(kafka_broker, topic)
    pool = Pool(tmp_path / "pool", [LLAMA, QWEN]).content()
    assert {name: memory_after(batches, name) for name in fleet} == {
        name: set(report.l1) for name, report in reports.items()
    }
    assert pool_after(batches) == set(pool)
    assert len(pool) == 20
    assert {batch.event_type for batch in batches} == set(EventType)
    assert reports["server-a"].entries < trimmed.entries
    assert sum(len(b.entries) for b in batches if b.instance_id == "server-a") == trimmed.entries
    assert max(b.seq for b in batches if b.instance_id == "server-a") == trimmed.last_seq


def test_every_store_carries_its_tokens_and_where_they_sat(
    fleet: dict[str, ServerProcess], kafka_broker: RunningBroker, topic: str
) -> None:
    truth = {
        chunk_hash: (request.chunk(index).tolist(), index * CHUNK_TOKENS)
        for request in RECIPE.workload().requests
        for index, chunk_hash in enumerate(request.chunk_hashes)
    }
    server = fleet["server-a"]
    server.answer()
    told(server, Serve(numbers_of("server-a")[:3]))
    stores = [b for b in log_of(kafka_broker, topic) if b.event_type is EventType.STORE]
    assert stores
    for entry in (entry for batch in stores for entry in batch.entries):
        assert (entry.token_ids.tolist(), entry.token_offset) == truth[entry.key.chunk_hash]


def test_a_withheld_batch_leaves_a_hole_until_it_is_delivered(
    fleet: dict[str, ServerProcess], kafka_broker: RunningBroker, topic: str
) -> None:
    server = fleet["server-a"]
    server.answer()
    number = numbers_of("server-a")[0]
    first = told(server, Serve((number,), withhold=True))
    assert first.withheld == first.l1 != frozenset()
    told(server, Serve((number,)))
    sent = [batch.seq for batch in log_of(kafka_broker, topic) if batch.instance_id == "server-a"]
    [hole] = set(range(1, max(sent) + 1)) - set(sent)
    assert told(server, Deliver()).withheld == frozenset()
    late = [batch for batch in log_of(kafka_broker, topic) if batch.instance_id == "server-a"][-1]
    assert (late.seq, late.event_type) == (hole, EventType.STORE)


def test_a_server_that_was_killed_comes_back_empty_in_a_newer_incarnation(
    fleet: dict[str, ServerProcess], kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    server = fleet["server-a"]
    server.answer()
    before = told(server, Serve(numbers_of("server-a")[:1]))
    server.kill()
    with pytest.raises(ChildError, match="server-a is gone"):
        told(server, Serve(()))
    start = Start("server-a", RECIPE, kafka_broker.bootstrap, topic, tmp_path, tmp_path / "pool")
    again = ServerProcess(start, tmp_path)
    fleet["server-a"] = again
    after = again.answer()
    assert after.incarnation > before.incarnation
    assert after.l1 == frozenset()
    assert after.last_seq >= 1, "a restarted server must be heard of at once"


def test_servers_end_when_the_demos_end_of_the_connection_closes(fleet: dict[str, ServerProcess]) -> None:
    for server in fleet.values():
        server.answer()
        server._connection.close()
        assert server._process.wait(20) == 0


class Recorded:
    """One cache server writing its events to a file."""

    def __init__(self, folder: Path, chunks: int) -> None:
        self.path = folder / "events.jsonl"
        self.pool = Pool(folder / "pool", [LLAMA])
        self.emitter = CacheEventEmitter(TraceSink(self.path), "server-a", 1, flush_interval=3600)
        self.server = CacheServer(Server("server-a", LLAMA, chunks), [LLAMA], self.pool, self.emitter)

    def events(self) -> list[tuple[str, str, int]]:
        """Type, tier and number of entries of each batch since the last call."""
        self.emitter.flush()
        batches = list(read_trace(self.path))
        self.path.write_bytes(b"")
        return [(b.event_type.value, b.tier.value, len(b.entries)) for b in batches]


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    recorded = Recorded(tmp_path, chunks=4)
    recorded.events()
    yield recorded
    recorded.emitter.close()


def prompt(*chunks: int) -> Request:
    tokens = np.repeat(np.array(chunks, np.uint32), CHUNK_TOKENS)
    return Request(0, 0.0, LLAMA, "", "server-a", tokens, ())


def test_chunks_read_in_memory_are_accesses_and_new_ones_stores_on_every_rank(recorded: Recorded) -> None:
    recorded.server.serve(prompt(1, 2))
    assert recorded.events() == [("store", "l1", 4)]
    recorded.server.serve(prompt(1, 2, 3))
    assert recorded.events() == [("access", "l1", 4), ("store", "l1", 2)]


def test_the_least_recently_used_chunks_move_to_the_pool_and_come_back(recorded: Recorded) -> None:
    first, second = prompt(1, 2), prompt(7, 8, 9)
    recorded.server.serve(first)
    recorded.server.serve(second)
    assert recorded.events()[-3:] == [("store", "l1", 10), ("store", "l2", 2), ("delete", "l1", 2)]
    assert set(recorded.pool.content()) == {Held(first.namespace, first.chunk_hashes[0])}
    recorded.server.serve(first)
    assert recorded.events() == [
        ("access", "l1", 2),
        ("access", "l2", 2),
        ("store", "l1", 2),
        ("store", "l2", 2),
        ("delete", "l1", 2),
    ]


def test_the_pool_drops_what_was_used_least_recently(recorded: Recorded) -> None:
    recorded.server.serve(prompt(1, 2, 3, 4))
    recorded.server.serve(prompt(5, 6, 7, 8))
    recorded.events()
    oldest, *others = prompt(1, 2, 3, 4).chunk_hashes
    held = Held(LLAMA_NAMESPACE, others[0])
    assert recorded.pool.read(held)
    recorded.server.trim_pool(1)
    assert recorded.events() == [("delete", "l2", 6)]
    assert recorded.pool.content() == {held: "server-a"}
    assert not recorded.pool.read(Held(LLAMA_NAMESPACE, oldest))


LLAMA_NAMESPACE = prompt(1).namespace


def test_of_two_servers_that_write_a_chunk_to_the_pool_one_does(tmp_path: Path) -> None:
    pool = Pool(tmp_path, [LLAMA, QWEN])
    request = assembled_prompts(3).requests[1]
    held = Held(request.namespace, request.chunk_hashes[0])
    assert [pool.write(held, "server-a"), pool.write(held, "server-b")] == [True, False]
    assert pool.content() == {held: "server-a"}


def test_the_withholding_sink_keeps_one_store_and_passes_all_else(tmp_path: Path) -> None:
    def batch(seq: int, event_type: EventType, tier: Tier = Tier.L1) -> CacheEventBatch:
        return CacheEventBatch("server-a", 1, seq, event_type, tier, "dram")

    path = tmp_path / "events.jsonl"
    sink = WithholdingSink(TraceSink(path))
    sink.arm()
    sink.publish([batch(1, EventType.ACCESS), batch(2, EventType.STORE, Tier.L2), batch(3, EventType.STORE)])
    sink.publish([batch(4, EventType.STORE)])
    assert sink.kept is not None and sink.kept.seq == 3
    assert [b.seq for b in read_trace(path)] == [1, 2, 4]
    sink.deliver()
    assert sink.kept is None
    assert [b.seq for b in read_trace(path)] == [1, 2, 4, 3]
    sink.close()
