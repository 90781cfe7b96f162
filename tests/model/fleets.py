"""Fleets to draw: histories in small alphabets, where everything collides, and their deliveries.

A history is what the emitters did, in the order in which they did it. A delivery is the order in which a
reader meets it: late, doubled, and shuffled within each incarnation. An incarnation's last batch comes before
the next one's first, since nothing can tell that a tail is yet to come; its others may come long after.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from producer.events import (
    UNKNOWN_TOKEN_OFFSET,
    CacheEventBatch,
    CacheEventEntry,
    EventType,
    Namespace,
    ObjectKey,
    Tier,
    make_kv_rank,
)

CHUNK_SIZE = 4
INSTANCES = ("a", "b", "c")
CHUNKS = (b"\x00", b"\x00\x00", b"\x01" * 32)
MODELS = ("m", "n")
SALTS = ("", "s")
RANKS = (make_kv_rank(1, 0, 1, 0), make_kv_rank(2, 0, 2, 0), make_kv_rank(2, 1, 2, 1))
BACKENDS = ("x", "y")
NAMESPACES = [Namespace(m, s, w) for m in MODELS for s in SALTS for w in (1, 2)]

contents = st.lists(st.integers(0, 2), min_size=CHUNK_SIZE, max_size=CHUNK_SIZE).map(tuple)
keys = st.builds(
    ObjectKey,
    st.sampled_from(CHUNKS),
    st.sampled_from(MODELS),
    st.sampled_from(RANKS),
    st.integers(0, 1),
    st.sampled_from(SALTS),
)


@dataclass(frozen=True)
class Telling:
    """What the stores of a history say of their chunks. Every chunk keeps one content and one offset."""

    always: bool
    """Every store carries the tokens and the offset."""


@st.composite
def histories(draw: st.DrawFn, telling: Telling, max_batches: int = 14) -> list[CacheEventBatch]:
    """What a fleet did; the emitters' clocks agree and rise from one batch to the next."""
    content = {chunk: draw(contents) for chunk in CHUNKS}
    pool = draw(st.lists(keys, min_size=1, max_size=4, unique=True))
    backends = BACKENDS[: draw(st.integers(1, 2))]
    streams = dict.fromkeys(INSTANCES[: draw(st.integers(1, 3))], (1, 0))
    history = []
    for index in range(draw(st.integers(1, max_batches))):
        instance = draw(st.sampled_from(sorted(streams)))
        incarnation, seq = streams[instance]
        if seq and draw(st.integers(0, 7)) == 7:
            incarnation, seq = incarnation + 1, 0
        streams[instance] = incarnation, seq + 1
        entries = []
        for key in draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3)):
            said = telling.always or draw(st.booleans())
            placed = telling.always or draw(st.integers(0, 3)) > 0
            entries.append(
                CacheEventEntry(
                    key,
                    size_bytes=draw(st.integers(0, 9)),
                    token_ids=content[key.chunk_hash] if said else (),
                    token_offset=CHUNKS.index(key.chunk_hash) if placed else UNKNOWN_TOKEN_OFFSET,
                )
            )
        kind = draw(st.sampled_from((EventType.STORE, EventType.STORE, EventType.DELETE, EventType.ACCESS)))
        tier, shared = draw(st.sampled_from(tuple(Tier))), draw(st.booleans())
        backend = draw(st.sampled_from(backends))
        ts = 1000.0 + index
        history.append(
            CacheEventBatch(
                instance, incarnation, seq + 1, kind, tier, backend, entries, shared=shared, ts=ts
            )
        )
    return history


@st.composite
def deliveries(draw: st.DrawFn, history: list[CacheEventBatch], turns: list[str]) -> list[CacheEventBatch]:
    """The history late, doubled and shuffled; `turns` says whose batch comes when."""
    streams = {instance: iter(draw(_shuffled(history, instance))) for instance in dict.fromkeys(turns)}
    delivery: list[CacheEventBatch] = []
    for instance in turns:
        delivery.append(next(streams[instance]))
        if draw(st.integers(0, 3)) == 0:
            delivery.append(draw(st.sampled_from(delivery)))
    return delivery


@st.composite
def _shuffled(draw: st.DrawFn, history: list[CacheEventBatch], instance: str) -> list[CacheEventBatch]:
    mine = [batch for batch in history if batch.instance_id == instance]
    placed: list[tuple[float, CacheEventBatch]] = []
    for start, incarnation in enumerate(sorted({batch.incarnation for batch in mine})):
        batches = [batch for batch in mine if batch.incarnation == incarnation]
        placed.extend((start + draw(st.integers(0, 15)) / 8 + 1 / 16, batch) for batch in batches[:-1])
        placed.append((start + draw(st.integers(1, 8)) / 8, batches[-1]))
    return [batch for _, batch in sorted(placed, key=lambda item: item[0])]


def in_order(history: list[CacheEventBatch], turns: list[str]) -> list[CacheEventBatch]:
    """Every emitter's stream in order, taking turns as told."""
    streams = {instance: iter([b for b in history if b.instance_id == instance]) for instance in set(turns)}
    return [next(streams[instance]) for instance in turns]
