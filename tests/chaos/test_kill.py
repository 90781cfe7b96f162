"""The processor killed at random points, again and again, while a fleet goes on.

`BLENDSTREAM_CHAOS_ROUNDS` says how often; 30 by default.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from api.client import Client
from processor.durability.inspection import inspect
from producer.events import (
    CacheEventBatch,
    CacheEventEntry,
    EventType,
    Namespace,
    ObjectKey,
    Tier,
    make_kv_rank,
)
from producer.sinks.kafka import KafkaSink
from tests.brokers import RunningBroker
from tests.e2e.processes import Process, server
from tests.e2e.test_processor import kafka, metric, ready
from tests.model.directory import Directory
from tests.model.gate import Gate
from tests.waiting import wait_for

ROUNDS = int(os.environ.get("BLENDSTREAM_CHAOS_ROUNDS", "30"))
SEED = int(os.environ.get("BLENDSTREAM_CHAOS_SEED", "1"))
CHUNK, CHUNKS = 4, 150
MODEL = "model"
INSTANCES = ("a", "b", "c")
RANK = make_kv_rank(1, 0, 1, 0)


class Fleet(threading.Thread):
    """Emitters that store, delete and read until they are told to stop; the model hears all of it then."""

    def __init__(self, broker: RunningBroker, topic: str) -> None:
        super().__init__(name="fleet")
        self.model = Directory(CHUNK)
        self.sent = dict.fromkeys(INSTANCES, 0)
        self._batches: list[CacheEventBatch] = []
        self._sink = KafkaSink(broker.bootstrap, topic)
        self._random = random.Random(SEED)
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.wait(0.01):
            batches = [self._batch(self._random.choice(INSTANCES)) for _ in range(self._random.randint(1, 4))]
            self._sink.publish(batches)

    def stop(self) -> None:
        self._ending.set()
        self.join()
        assert self._sink.flush(30)
        self._sink.close()
        gate = Gate(self.model)
        for batch in self._batches:
            gate.offer(batch, now=batch.ts)

    def _batch(self, instance: str) -> CacheEventBatch:
        random = self._random
        self.sent[instance] += 1
        kind = random.choice([EventType.STORE] * 5 + [EventType.DELETE] * 2 + [EventType.ACCESS])
        entries = [self._entry(instance, kind) for _ in range(random.randint(1, 5))]
        batch = CacheEventBatch(
            instance, 1, self.sent[instance], kind, random.choice(tuple(Tier)), "backend", entries,
            ts=time.time(),
        )  # fmt: skip
        self._batches.append(batch)
        return batch

    def _entry(self, instance: str, kind: EventType) -> CacheEventEntry:
        # No two instances speak of one chunk, since nobody says whose record is read first.
        number = self._random.randrange(CHUNKS)
        key = ObjectKey(f"{instance}{number:04}".encode(), MODEL, RANK)
        if kind is not EventType.STORE:
            return CacheEventEntry(key)
        return CacheEventEntry(key, number, text(number), CHUNK * (number % 7))


def text(number: int) -> tuple[int, ...]:
    """What a chunk holds; instances hold the same texts."""
    return (number % 101, number % 103, number % 7, 1)


class Killer:
    """Kills a server at a moment of its own choice."""

    def __init__(self, seed: int, checkpoints: Path) -> None:
        self._random = random.Random(seed)
        self._checkpoints = checkpoints

    def choose(self) -> Callable[[Process, Client, Fleet], None]:
        return self._random.choice(
            [self.while_it_starts, self.while_it_writes, self.after_a_checkpoint, self.while_it_reads]
        )

    def while_it_starts(self, process: Process, client: Client, fleet: Fleet) -> None:
        """At once: it listens, and has hardly read anything."""

    def while_it_writes(self, process: Process, client: Client, fleet: Fleet) -> None:
        wait_for(lambda: self._names("writing-"), 60, "no checkpoint is begun")

    def after_a_checkpoint(self, process: Process, client: Client, fleet: Fleet) -> None:
        before = self._names("checkpoint-")
        wait_for(lambda: self._names("checkpoint-") - before, 60, "no checkpoint is finished")

    def while_it_reads(self, process: Process, client: Client, fleet: Fleet) -> None:
        goal = fleet.sent["a"] + self._random.randint(1, 100)
        wait_for(
            lambda: any(s.instance_id == "a" and s.last_seq >= goal for s in client.streams()),
            60,
            "the stream is not read",
        )

    def _names(self, prefix: str) -> set[str]:
        return {path.name for path in self._checkpoints.glob(f"{prefix}*")}


@pytest.mark.broker("kafka")
@pytest.mark.parametrize("topic", [4], indirect=True)
def test_whenever_it_is_killed_it_comes_back_to_what_the_model_says(
    kafka_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    arguments = [
        *("--event-transport", "kafka", *kafka(kafka_broker, topic), "--chunk-size", str(CHUNK)),
        *("--enable-blend-lookup", "--checkpoint-path", str(state), "--checkpoint-interval", "0.2"),
    ]
    fleet, killer = Fleet(kafka_broker, topic), Killer(SEED, state)
    fleet.start()
    restored = 0
    try:
        for round in range(ROUNDS):
            with server(*arguments) as (process, client):
                killer.choose()(process, client, fleet)
                process.process.send_signal(signal.SIGKILL)
                process.process.wait()
            restored += "restored" in "".join(process.lines)
            assert "damaged" not in "".join(process.lines), f"round {round}"
    finally:
        fleet.stop()
    assert restored >= ROUNDS // 2
    with server(*arguments) as (process, client):
        wait_for(lambda: ready(client), 60, "the server is ready")
        wait_for(
            lambda: {s.instance_id: s.last_seq for s in client.streams()} == fleet.sent, 60, "all is read"
        )
        check(client, fleet)
        assert (metric(client, "blendstream_checkpoint_restore_seconds") or 0) < 1
        assert process.terminate() == 0
    current, _ = inspect(state)
    assert current.problems == []
    assert {s["instance_id"]: s["last_seq"] for s in current.documents["gate"]["streams"]} == fleet.sent
    with server(*arguments) as (process, client):
        wait_for(lambda: ready(client), 60, "the server is ready")
        check(client, fleet)


def check(client: Client, fleet: Fleet) -> None:
    """The processor holds what the model holds, and no flag is up."""
    model = fleet.model
    assert [s.instance_id for s in client.streams() if s.gap_detected or s.conflict or s.lost] == []
    keys = sorted(model.live_keys(), key=lambda key: key.chunk_hash)
    for begin in range(0, len(keys), 500):
        part = keys[begin : begin + 500]
        for key, told in zip(part, client.lookup(part), strict=True):
            assert [(p.instance_id, p.tier, p.backend, p.size_bytes) for p in told.placements] == [
                (p.instance_id, p.tier, p.backend, p.size_bytes) for p in model.placements(key)
            ]
            assert tuple(told.token_ids) == model.token_ids(key)
            assert told.access_count == model.access_count(key)
    assert client.stats().num_keys == len(keys)
    for number in range(0, CHUNKS, 7):
        query = (200, *text(number), 201)
        assert [(m.old_st, m.cur_st) for m in client.blend_lookup(query, MODEL)] == [
            (m.old_st, m.cur_st) for m in model.match(query, Namespace(MODEL))
        ]
