"""A short life of a fleet, the same every time, with everything in it that a history may hold but losses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from api.token_hasher import TokenHasher
from producer.events import (
    UNKNOWN_TOKEN_OFFSET,
    CacheEventBatch,
    CacheEventEntry,
    EventType,
    Namespace,
    ObjectKey,
    Tier,
)
from tests.interop.fleet import (
    CHUNK_SIZE,
    CHUNKS,
    COMPARTMENTS,
    INSTANCES,
    NAMESPACES,
    PROMPTS,
    Compartment,
    Deliver,
    History,
    ranks_of,
    tokens_of,
)


def story() -> History:
    """A short life of a fleet, the same every time, with everything in it that a history may hold but
    losses.
    """
    a, b, c = (_Story(name, 1_700_000_000) for name in INSTANCES)
    dram, fs, s3 = COMPARTMENTS[:3]
    base, tenant, pair, other = NAMESPACES
    return _told(
        [
            a.store(dram, 0, base),
            a.store(s3, 0, base),
            b.store(dram, 1, pair),
            b.store(fs, 2, tenant),
            c.store(s3, 1, base, with_tokens=False),
            a.says(EventType.ACCESS, Compartment(Tier.L1, ""), 0, base),
            b.says(EventType.CONFIG, dram, None, base),
            c.store(dram, 3, other),
            c.store(dram, 0, other),
            b.says(EventType.DELETE, fs, 2, tenant),
            c.says(EventType.DELETE, dram, 3, other),
            a.restarted().store(dram, 2, base),
            b.says(EventType.ACCESS, Compartment(Tier.L2, "s3"), 1, base),
        ]
    )


@dataclass
class _Story:
    """An instance of the story: its sequence numbers and incarnation."""

    instance_id: str
    incarnation: int
    seq: int = 0

    def restarted(self) -> _Story:
        self.incarnation += 1
        self.seq = 0
        return self

    def store(
        self, place: Compartment, prompt: int, namespace: Namespace, with_tokens: bool = True
    ) -> CacheEventBatch:
        return self.says(EventType.STORE, place, prompt, namespace, with_tokens)

    def says(
        self,
        event_type: EventType,
        place: Compartment,
        prompt: int | None,
        namespace: Namespace,
        with_tokens: bool = False,
    ) -> CacheEventBatch:
        self.seq += 1
        digests = [] if prompt is None else _digests(prompt)
        chunks = [chunk for chunk in CHUNKS if chunk.digest in digests]
        return CacheEventBatch(
            instance_id=self.instance_id,
            incarnation=self.incarnation,
            seq=self.seq,
            event_type=event_type,
            tier=place.tier,
            backend=place.backend,
            shared=place.shared,
            capacity_bytes=1 << 30 if event_type is EventType.CONFIG else 0,
            entries=[
                CacheEventEntry(
                    ObjectKey(chunk.digest, namespace.model_name, rank, 0, namespace.cache_salt),
                    4096 if event_type is EventType.STORE else 0,
                    chunk.tokens if with_tokens else (),
                    chunk.offset if with_tokens else UNKNOWN_TOKEN_OFFSET,
                )
                for chunk in chunks
                for rank in ranks_of(namespace)
            ],
        )


def _digests(prompt: int) -> list[bytes]:
    return list(TokenHasher(CHUNK_SIZE).hashes(np.array(tokens_of(PROMPTS[prompt]), np.uint32)))


def _told(batches: list[CacheEventBatch]) -> History:
    return History(tuple(Deliver(replace(batch, ts=1_000.0 + n)) for n, batch in enumerate(batches)))
