"""A fleet under load, and what a processor must hold once it has heard all of it.

Instances store, delete and read at random, the same for the same seed. A plain-Python model hears every batch
that a sink took, in the order in which it was built, and `check` compares a server with it.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from api.client import Client, ServerError
from producer.events import (
    CacheEventBatch,
    CacheEventEntry,
    EventType,
    Namespace,
    ObjectKey,
    Tier,
    make_kv_rank,
)
from producer.sinks.protocol import PublishError, Sink
from tests.e2e.asking import reading
from tests.model.directory import Directory
from tests.model.gate import Gate

ROUNDS = int(os.environ.get("BLENDSTREAM_CHAOS_ROUNDS", "30"))
"""How long chaos lasts: 30 in the short form, 200 in the long one."""
SEED = int(os.environ.get("BLENDSTREAM_CHAOS_SEED", "1"))
CHUNK, CHUNKS = 4, 150
"""Tokens of a chunk; chunks that an instance speaks of."""
MODEL = "model"
BACKEND = "backend"
INSTANCES = ("a", "b", "c")
RANK = make_kv_rank(1, 0, 1, 0)
PAUSE = 0.01
"""Seconds between two bursts of a fleet."""

KINDS = [EventType.STORE] * 5 + [EventType.DELETE] * 2 + [EventType.ACCESS]

T = TypeVar("T")


def text(number: int) -> tuple[int, ...]:
    """What a chunk holds; instances hold the same texts."""
    return (number % 101, number % 103, number % 7, 1)


def offset(number: int) -> int:
    """Where a chunk's first token sat."""
    return CHUNK * (number % 7)


def key(instance: str, number: int) -> ObjectKey:
    """A chunk of an instance. No two speak of the same one, since nobody says whose record is read first."""
    return ObjectKey(f"{instance}{number:04}".encode(), MODEL, RANK)


def entry(instance: str, kind: EventType, number: int) -> CacheEventEntry:
    if kind is not EventType.STORE:
        return CacheEventEntry(key(instance, number))
    return CacheEventEntry(key(instance, number), number, text(number), offset(number))


class Fleet(threading.Thread):
    """Instances that publish batches to a sink until they are told to stop; the model hears of them then.

    A batch that the sink refuses has used up its sequence number, as an emitter's has; the model does not
    hear it.
    """

    def __init__(self, sink: Sink, *, seed: int = SEED, pause: float = PAUSE) -> None:
        super().__init__(name="fleet")
        self.model = Directory(CHUNK)
        self.sent = dict.fromkeys(INSTANCES, 0)
        """The last sequence number of each instance."""
        self.refused: list[CacheEventBatch] = []
        self.taken: list[CacheEventBatch] = []
        self._sink = sink
        self._pause = pause
        self._random = random.Random(seed)
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.wait(self._pause):
            for _ in range(self._random.randint(1, 4)):
                self._publish(self.make(self._random.choice(INSTANCES)))

    def stop(self, timeout: float = 30.0) -> None:
        """End the load, wait until the sink has delivered all of it and close it."""
        self._ending.set()
        self.join()
        assert self._sink.flush(timeout), "the sink has not delivered everything"
        self._sink.close()
        listen(self.model, self.taken)

    def make(self, instance: str) -> CacheEventBatch:
        """The next batch of an instance."""
        random = self._random
        self.sent[instance] += 1
        kind = random.choice(KINDS)
        entries = [entry(instance, kind, random.randrange(CHUNKS)) for _ in range(random.randint(1, 5))]
        return CacheEventBatch(
            instance, 1, self.sent[instance], kind, random.choice(tuple(Tier)), BACKEND, entries,
            ts=time.time(),
        )  # fmt: skip

    def _publish(self, batch: CacheEventBatch) -> None:
        try:
            self._sink.publish([batch])
        except PublishError:
            self.refused.append(batch)
        else:
            self.taken.append(batch)


def hearing(bootstrap: str, topic: str, state: Path, interval: float) -> list[str]:
    """The options of a server that hears a fleet, and writes a checkpoint every `interval` seconds."""
    return [
        *(*reading(bootstrap, topic), "--chunk-size", str(CHUNK)),
        *("--checkpoint-path", str(state), "--checkpoint-interval", str(interval)),
    ]


def listen(model: Directory, batches: Iterable[CacheEventBatch]) -> None:
    """Let a model hear batches, in their order, through the gate of the model."""
    gate = Gate(model)
    for batch in batches:
        gate.offer(batch, now=batch.ts)


def told(ask: Callable[[], T]) -> T | None:
    """An answer of a server, or None while it has not restored its state yet."""
    try:
        return ask()
    except ServerError as error:
        if error.status != 503:
            raise
        return None


def progress(client: Client) -> dict[str, int] | None:
    """How far each stream has been read; None while the server starts."""
    streams = told(client.streams)
    return None if streams is None else {stream.instance_id: stream.last_seq for stream in streams}


def check(client: Client, model: Directory) -> None:
    """The processor holds what the model holds, and no flag is up."""
    check_flags(client)
    check_answers(client, model)


def check_flags(client: Client) -> None:
    """No stream lacks anything, or has lost anything, or contradicts itself."""
    assert [s for s in client.streams() if s.gap_detected or s.conflict or s.missing or s.lost] == []


def check_answers(client: Client, model: Directory) -> None:
    """The processor answers as the model does: every key, and matches at any offset."""
    keys = sorted(model.live_keys(), key=lambda key: key.chunk_hash)
    for begin in range(0, len(keys), 500):
        part = keys[begin : begin + 500]
        for one, found in zip(part, client.lookup(part), strict=True):
            assert [(p.instance_id, p.tier, p.backend, p.size_bytes) for p in found.placements] == [
                (p.instance_id, p.tier, p.backend, p.size_bytes) for p in model.placements(one)
            ]
            assert tuple(found.token_ids) == model.token_ids(one)
            assert found.access_count == model.access_count(one)
    assert client.stats().num_keys == len(keys)
    for number in range(0, CHUNKS, 7):
        query = (200, *text(number), 201)
        assert [(m.old_st, m.cur_st) for m in client.blend_lookup(query, MODEL)] == [
            (m.old_st, m.cur_st) for m in model.match(query, Namespace(MODEL))
        ]
