"""Made-up cache events: an instance that stores sequences of random tokens, the same ones for the same seed.

Chunk hashes are those that real tokens have, so what is emitted can be looked up by keys, by tokens and by
content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from api.token_hasher import TokenHasher
from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier, make_kv_rank

VOCABULARY: Final = 128_000
BYTES_PER_TOKEN: Final = 4_096
"""KV of one token of one worker, as reported; nothing is stored."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """What to make up: `batches` batches, each of one sequence of `chunks` chunks."""

    instance_id: str
    incarnation: int
    batches: int
    chunks: int = 16
    chunk_size: int = 256
    world_size: int = 1
    model_name: str = "synthetic"
    cache_salt: str = ""
    seed: int = 0

    def sequence(self, index: int) -> NDArray[np.uint32]:
        """The tokens that batch `index`, counted from 0, stores."""
        source = np.random.default_rng((self.seed, index))
        return source.integers(0, VOCABULARY, self.chunks * self.chunk_size, dtype=np.uint32)

    def events(self, clock: float) -> Iterator[CacheEventBatch]:
        """The batches in order; `clock` is the time of the first, each later one's is a microsecond on."""
        size = self.world_size
        ranks = [make_kv_rank(size, rank, size, rank) for rank in range(size)]
        hasher = TokenHasher(self.chunk_size)
        for index in range(self.batches):
            tokens = self.sequence(index)
            entries = [
                CacheEventEntry(
                    ObjectKey(chunk_hash, self.model_name, rank, cache_salt=self.cache_salt),
                    self.chunk_size * BYTES_PER_TOKEN,
                    tokens[start : start + self.chunk_size],
                    start,
                )
                for start, chunk_hash in zip(
                    range(0, len(tokens), self.chunk_size), hasher.hashes(tokens), strict=True
                )
                for rank in ranks
            ]
            yield CacheEventBatch(
                self.instance_id,
                self.incarnation,
                index + 1,
                EventType.STORE,
                Tier.L1,
                "dram",
                entries,
                ts=clock + index * 1e-6,
            )
