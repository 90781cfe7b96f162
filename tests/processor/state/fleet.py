"""Random histories of one directory: batches of all kinds, fences, and what housekeeping does."""

from __future__ import annotations

import numpy as np

from processor.batch import Admission, BatchColumns, EventBatch
from processor.state.directory import KeyDirectory
from producer.events import EventType, Tier, make_kv_rank

CHUNK_SIZE = 4
INSTANCES = ("a", "b", "c")
RANKS = [make_kv_rank(world, rank, world, rank) for world in (1, 2) for rank in range(world)]


class Fleet:
    """Random batches, all kinds of them, and what befalls a directory besides."""

    def __init__(self, directory: KeyDirectory, seed: int, chunks: int) -> None:
        self.directory = directory
        self.random = np.random.default_rng(seed)
        self.chunks = chunks
        self.seq = 0

    def step(self) -> None:
        kind = self.random.random()
        instance = str(self.random.choice(INSTANCES))
        if kind < 0.9:
            self.batch(instance)
        elif kind < 0.94:
            self.directory.fence(instance)
        elif kind < 0.97:
            self.directory.settle(instance)
        else:
            self.directory.expire(float(self.seq - 20))

    def batch(self, instance: str) -> None:
        self.seq += 1
        random = self.random
        event = EventType(str(random.choice(["store", "store", "store", "delete", "access"])))
        batch = EventBatch(
            instance, 1, self.seq, event, Tier(str(random.choice(["l1", "l2"]))), "backend",
            shared=bool(random.random() < 0.3), ts=float(self.seq), event_time=float(self.seq),
            columns=self.columns(int(random.integers(1, 12))),
        )  # fmt: skip
        flags = random.random(3) < 0.3
        self.directory.consume(
            Admission(batch, 1, l1_void=bool(flags[0] and flags[1]), keep_tombstones=bool(flags[2]),
                      keep_contents=bool(flags[1]))
        )  # fmt: skip

    def store_new(self, count: int) -> None:
        """Store chunks that nobody knows, each with a text of its own."""
        for _ in range(count):
            self.seq += 1
            columns = self.columns(1)
            columns.chunk_hashes[0, 8:] = 1
            columns.chunk_hashes[0, :8] = np.frombuffer(self.seq.to_bytes(8, "little"), np.uint8)
            columns.token_starts = np.array([0, CHUNK_SIZE], np.int64)
            columns.tokens = np.full(CHUNK_SIZE, 1000 + self.seq, np.uint32)
            batch = EventBatch("a", 1, self.seq, EventType.STORE, Tier.L2, "backend", columns=columns)
            self.directory.consume(Admission(batch, 1, keep_contents=True))

    def columns(self, count: int) -> BatchColumns:
        random = self.random
        numbers = random.integers(0, self.chunks, count)
        hashes = np.zeros((count, 32), np.uint8)
        hashes[:, :8] = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)
        lengths = random.choice([0, CHUNK_SIZE, CHUNK_SIZE, CHUNK_SIZE, 3, 2 * CHUNK_SIZE + 1], count)
        # Few texts, so that chunks share them; many, so that tables grow.
        return BatchColumns(
            scopes=[("model", ""), ("model", "salt")],
            chunk_hashes=hashes,
            hash_lens=np.full(count, 32, np.uint8),
            token_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            tokens=(random.integers(0, 3, int(lengths.sum())) + numbers.max() % 50).astype(np.uint32),
            token_offsets=random.choice([-1, 0, 8], count).astype(np.int64),
            chunk=np.arange(count, dtype=np.uint32),
            scope=random.integers(0, 2, count).astype(np.uint32),
            kv_rank=random.choice(np.array(RANKS, np.uint64), count),
            object_group_id=random.integers(0, 2, count).astype(np.uint32),
            size_bytes=random.integers(0, 100, count).astype(np.int64),
        )


def directory(*, blend: bool = True, max_chunks: int = 20_000, bits: int = 64) -> KeyDirectory:
    return KeyDirectory(
        chunk_size=CHUNK_SIZE, max_chunks=max_chunks, enable_blend=blend, fingerprint_bits=bits
    )
