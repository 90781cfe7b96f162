"""A server of its own for a test: the real application on a real socket, in a thread of this process."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from api.client import Client
from api.server import address_of, bind, make_server
from api.token_hasher import TokenHasher
from processor.service import Config, Service
from producer.events import (
    CacheEventBatch,
    CacheEventEntry,
    EventType,
    ObjectKey,
    Tier,
    make_kv_rank,
)
from producer.wire import encode_columns

CHUNK = 4
"""Tokens of a chunk in these tests."""
MODEL = "m"


@dataclass(frozen=True)
class Serving:
    """A running server: raw HTTP to it, our client of it, and what is behind it."""

    http: httpx.Client
    client: Client
    service: Service
    address: str

    def emit(self, *batches: CacheEventBatch) -> dict[str, Any]:
        answer = self.http.post("/events", content=encode_columns(batches))
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body


@contextmanager
def serving(**settings: Any) -> Iterator[Serving]:
    """Serve on a Unix socket, or on a port if `uds` is empty; blend lookup is on unless said otherwise."""
    with not_started(**settings) as server:
        server.service.start()
        yield server


@contextmanager
def not_started(**settings: Any) -> Iterator[Serving]:
    """The same with a service that has not begun to start."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.sock"
        defaults: dict[str, Any] = {"chunk_size": CHUNK, "max_chunks": 4096, "enable_blend_lookup": True}
        config = Config(**{**defaults, "uds": str(path), **settings})
        service = Service(config)
        listening = threading.Event()
        server = make_server(service)
        server.on_listening = listening.set
        with bind(config) as listener:
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            try:
                assert listening.wait(60), "the server does not listen"
                address = address_of(listener)
                transport = httpx.HTTPTransport(uds=str(path)) if config.uds else None
                base_url = "http://localhost" if config.uds else address
                with (
                    httpx.Client(base_url=base_url, transport=transport, timeout=60) as http,
                    Client(address, timeout=60) as client,
                ):
                    yield Serving(http, client, service, address)
            finally:
                server.end()
                thread.join()
                service.stop()


def tokens(*ids: int) -> NDArray[np.uint32]:
    return np.array(ids, np.uint32)


def key(
    digest: bytes = b"\xab" * 32, *, world_size: int = 1, rank: int = 0, group: int = 0, salt: str = ""
) -> ObjectKey:
    return ObjectKey(digest, MODEL, make_kv_rank(world_size, rank, world_size, rank), group, salt)


def chunk_keys(sequence: NDArray[np.uint32], *, world_size: int = 1, salt: str = "") -> list[ObjectKey]:
    """The keys of a sequence's chunks, as a cache server computes them."""
    return [
        key(digest, world_size=world_size, rank=rank, salt=salt)
        for digest in TokenHasher(CHUNK).hashes(sequence)
        for rank in range(world_size)
    ]


def store(
    entries: list[CacheEventEntry],
    seq: int = 1,
    *,
    instance_id: str = "a",
    incarnation: int = 1,
    tier: Tier = Tier.L1,
    backend: str = "dram",
    shared: bool = False,
    ts: float = 1.5,
) -> CacheEventBatch:
    return CacheEventBatch(
        instance_id, incarnation, seq, EventType.STORE, tier, backend, entries, shared=shared, ts=ts
    )


def entries_of(sequence: NDArray[np.uint32], *, world_size: int = 1, salt: str = "") -> list[CacheEventEntry]:
    """A sequence's chunks as entries of a store, with their tokens and offsets."""
    keys = chunk_keys(sequence, world_size=world_size, salt=salt)
    entries = []
    for index, each in enumerate(keys):
        start = index // world_size * CHUNK
        entries.append(CacheEventEntry(each, 7, sequence[start : start + CHUNK], start))
    return entries


def wire_key(each: ObjectKey) -> dict[str, Any]:
    return {
        "chunk_hash_hex": each.chunk_hash.hex(),
        "model_name": each.model_name,
        "kv_rank": each.kv_rank,
        "object_group_id": each.object_group_id,
        "cache_salt": each.cache_salt,
    }
