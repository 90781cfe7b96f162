"""Hypothesis strategies for anything within the contract."""

from __future__ import annotations

from hypothesis import strategies as st

from producer.events import (
    MAX_INT,
    MAX_KV_RANK,
    MAX_OBJECT_GROUP_ID,
    MAX_TOKEN_ID,
    CacheEventBatch,
    CacheEventEntry,
    EventType,
    ObjectKey,
    Tier,
)

texts = st.text(st.characters(codec="utf-8"), max_size=12)
model_names = texts.map(lambda text: text.replace("@", "-"))
cache_salts = texts.map(lambda text: text.translate(dict.fromkeys(map(ord, "@/\\\0"), "-")))
names = texts.filter(bool)
integers = st.integers(0, MAX_INT)


def keys(hashes: st.SearchStrategy[bytes]) -> st.SearchStrategy[ObjectKey]:
    return st.builds(
        ObjectKey,
        chunk_hash=hashes,
        model_name=model_names,
        kv_rank=st.integers(0, MAX_KV_RANK),
        object_group_id=st.integers(0, MAX_OBJECT_GROUP_ID),
        cache_salt=cache_salts,
    )


def entries(hashes: st.SearchStrategy[bytes]) -> st.SearchStrategy[CacheEventEntry]:
    return st.builds(
        CacheEventEntry,
        key=keys(hashes),
        size_bytes=integers,
        token_ids=st.lists(st.integers(0, MAX_TOKEN_ID), max_size=8),
        token_offset=st.integers(-1, MAX_INT),
    )


@st.composite
def batches(draw: st.DrawFn, hash_lens: st.SearchStrategy[int] | None = None) -> CacheEventBatch:
    """Batches whose hashes are of one length, drawn from `hash_lens`, so that either form can carry them."""
    length = draw(hash_lens or st.integers(1, 32))
    # Few distinct hashes, so that entries share chunks.
    hashes = st.sampled_from([bytes([i]) * length for i in range(4)])
    event_type = draw(st.sampled_from(EventType))
    return CacheEventBatch(
        instance_id=draw(names),
        incarnation=draw(integers),
        seq=draw(st.integers(1, MAX_INT)),
        event_type=event_type,
        tier=draw(st.sampled_from(Tier)),
        backend=draw(texts if event_type is EventType.ACCESS else names),
        entries=() if event_type is EventType.CONFIG else draw(st.lists(entries(hashes), max_size=6)),
        shared=draw(st.booleans()),
        ts=draw(st.floats(0, allow_infinity=False)),
        capacity_bytes=draw(integers),
        capacity_revision=draw(integers),
    )
