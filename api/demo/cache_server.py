"""One cache server of the fleet, in a process of its own: an LRU memory before a pool that all servers mount.

It caches no KV, only the fact of it; all else is what a real one does. Chunks that fall out of memory go to
the pool, chunks found in the pool come back into memory, and each step is emitted through the real emitter
into Kafka. It ends when the demo's end of the connection closes, however that comes about.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Final

from api.demo.messages import Deliver, Message, Report, Serve, Start, Trim
from api.demo.oracle import L1_BACKEND, L2_BACKEND, Held
from api.demo.pool import Pool
from api.demo.withholding import WithholdingSink
from api.demo.workload import CHUNK_TOKENS, Model, Request, Server, Workload
from producer.emitter import CacheEventEmitter, Capacity
from producer.events import ObjectKey, Tier
from producer.incarnation import next_incarnation
from producer.sinks.kafka import KafkaSink

DELIVERY_TIMEOUT: Final = 30.0
"""Seconds that the broker may take to acknowledge what was emitted."""


class DeliveryError(RuntimeError):
    """The broker did not acknowledge all that was emitted."""


class CacheServer:
    """Serves prompts from memory and pool and emits what changes."""

    def __init__(
        self, server: Server, models: Iterable[Model], pool: Pool, emitter: CacheEventEmitter
    ) -> None:
        self._server = server
        self._models = {model.name: model for model in models}
        self._pool = pool
        self._emitter = emitter
        self._l1: OrderedDict[Held, None] = OrderedDict()
        per_chunk = server.model.object_bytes * server.model.world_size
        emitter.on_capacity([Capacity(Tier.L1, L1_BACKEND, server.l1_chunks * per_chunk)])

    @property
    def l1(self) -> frozenset[Held]:
        """The chunks in memory."""
        return frozenset(self._l1)

    def serve(self, request: Request) -> None:
        """Find or compute every complete chunk of a prompt, then make room."""
        hashes = request.chunk_hashes
        self._emitter.on_tokens(
            hashes,
            [request.chunk(index) for index in range(len(hashes))],
            [index * CHUNK_TOKENS for index in range(len(hashes))],
        )
        in_memory, in_pool, stored = [], [], []
        for held in (Held(request.namespace, chunk_hash) for chunk_hash in hashes):
            if held in self._l1:
                in_memory.append(held)
            else:
                stored.append(held)
                if self._pool.read(held):
                    in_pool.append(held)
            self._l1[held] = None
            self._l1.move_to_end(held)
        self._emitter.on_access(Tier.L1, self._keys(in_memory), backend=L1_BACKEND)
        self._emitter.on_access(Tier.L2, self._keys(in_pool), backend=L2_BACKEND, shared=True)
        self._emitter.on_store(Tier.L1, L1_BACKEND, self._keys(stored), self._sizes(stored))
        self._evict()

    def trim_pool(self, keep: int) -> None:
        """Drop the pool's least recently used chunks and say so."""
        gone = self._pool.trim(keep)
        self._emitter.on_delete(Tier.L2, L2_BACKEND, self._keys(gone), shared=True)

    def _evict(self) -> None:
        victims = [self._l1.popitem(last=False)[0] for _ in range(len(self._l1) - self._server.l1_chunks)]
        written = [held for held in victims if self._pool.write(held, self._server.name)]
        self._emitter.on_store(Tier.L2, L2_BACKEND, self._keys(written), self._sizes(written), shared=True)
        self._emitter.on_delete(Tier.L1, L1_BACKEND, self._keys(victims))

    def _keys(self, chunks: Iterable[Held]) -> list[ObjectKey]:
        return [
            key
            for namespace, chunk_hash in chunks
            for key in self._models[namespace.model_name].keys(chunk_hash, namespace.cache_salt)
        ]

    def _sizes(self, chunks: Iterable[Held]) -> list[int]:
        models = [self._models[held.namespace.model_name] for held in chunks]
        return [model.object_bytes for model in models for _ in range(model.world_size)]


class _Session:
    """A cache server at the end of a connection."""

    def __init__(self, start: Start) -> None:
        self._sink = WithholdingSink(KafkaSink(start.bootstrap, start.topic))
        incarnation = next_incarnation(start.folder / f"{start.name}.incarnation")
        self._emitter = CacheEventEmitter(self._sink, start.name, incarnation)
        self._workload: Workload = start.recipe.workload()
        models = {server.model for server in self._workload.servers}
        self._cache = CacheServer(
            self._workload.server(start.name), models, Pool(start.pool, models), self._emitter
        )

    def act(self, message: Message) -> None:
        match message:
            case Serve():
                if message.withhold:
                    self._sink.arm()
                for number in message.numbers:
                    request = self._workload.requests[number]
                    time.sleep(max(0.0, message.epoch + request.at / message.speed - time.monotonic()))
                    self._cache.serve(request)
            case Deliver():
                self._sink.deliver()
            case Trim(keep):
                self._cache.trim_pool(keep)
            case Start():
                raise ValueError("a cache server is started once")

    def report(self) -> Report:
        if not self._emitter.flush(DELIVERY_TIMEOUT):
            raise DeliveryError(f"the broker did not acknowledge every batch within {DELIVERY_TIMEOUT:g} s")
        counters = self._emitter.counters()
        if counters.dropped or counters.unbound:
            raise DeliveryError(f"the emitter lost something: {counters}")
        kept = self._sink.kept
        withheld = {Held(e.key.namespace, e.key.chunk_hash) for e in kept.entries} if kept else set()
        return Report(
            self._emitter.incarnation,
            counters.last_seq,
            counters.entries,
            self._cache.l1,
            frozenset(withheld),
        )

    def close(self) -> None:
        self._emitter.close()


def main(descriptor: int) -> None:
    """Serve the connection at that file descriptor until it closes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    with Connection(descriptor) as connection:
        session = _Session(connection.recv())
        try:
            connection.send(session.report())
            while True:
                session.act(connection.recv())
                connection.send(session.report())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            logging.info("the demo is gone; ending")
        finally:
            session.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
