"""Whether model and engine know the same of all that anyone may ask, and hold no more rows than they must."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from processor.state.directory import KeyDirectory, KeyInfo
from processor.state.layout import CHUNKS, CLAIMS, CONTENTS, KEYS, PLACES, TOKENS, USED
from producer.events import Namespace, ObjectKey, Tier
from tests.model.directory import Directory, Held, Match


def assert_same_directory(
    model: Directory,
    engine: KeyDirectory,
    keys: Sequence[ObjectKey],
    namespaces: Sequence[Namespace],
    query: Sequence[int],
) -> None:
    assert_same_keys(model, engine, keys)
    assert_same_counts(model, engine)
    for namespace in namespaces:
        assert matches(engine, query, namespace) == model.match(query, namespace)
    assert rows_in_use(engine) == rows_needed(model)
    assert engine.interned() == model.names()


def assert_same_keys(model: Directory, engine: KeyDirectory, keys: Sequence[ObjectKey]) -> None:
    accesses = engine_last_access(engine, keys)
    for key, info, last_access in zip(keys, engine.lookup(keys), accesses, strict=True):
        assert info.key == key
        assert held(info) == model.placements(key)
        assert tuple(info.token_ids.tolist()) == model.token_ids(key)
        assert info.num_tokens == len(info.token_ids)
        assert info.access_count == model.access_count(key)
        assert last_access == model.last_access(key)
    expanded = [copy for key in keys for copy in model.expand_groups(key)]
    assert engine.expand_groups(keys) == expanded


def assert_same_counts(model: Directory, engine: KeyDirectory) -> None:
    stats = engine.stats()
    found = {name: getattr(stats, name) for name in model.counts() if hasattr(stats, name)}
    found |= {name: getattr(stats.blend, name) for name in model.counts() if hasattr(stats.blend, name)}
    assert found == model.counts()
    assert stats.refused == 0
    usage = {(u.instance_id, u.tier, u.backend, u.shared): (u.count, u.size_bytes) for u in engine.usage()}
    assert usage == model.usage()


def assert_same_listing(
    model: Directory, engine: KeyDirectory, tier: Tier | None, instance_id: str, backend: str, page: int
) -> None:
    """The pages of a listing, one behind the other, are the listing."""
    expected = model.listed(tier, instance_id, backend)
    listed: list[KeyInfo] = []
    for offset in range(0, len(expected) + 1, page):
        total, infos = engine.list_keys(tier, instance_id, backend, offset, page)
        assert total == len(expected)
        assert len(infos) == min(page, len(expected) - offset)
        listed += infos
    assert {info.key: held(info) for info in listed} == expected
    assert len(listed) == len(expected)
    assert engine.list_keys(tier, instance_id, backend, 0, 0) == (len(expected), [])
    for info in listed:
        assert info.num_tokens == len(model.token_ids(info.key))
        assert len(info.token_ids) == 0


def held(info: KeyInfo) -> list[Held]:
    """The placements of a key, in the engine's order."""
    return [
        Held(p.instance_id, p.incarnation, p.tier, p.backend, p.size_bytes, p.shared) for p in info.placements
    ]


def matches(engine: KeyDirectory, query: Sequence[int], namespace: Namespace) -> list[Match]:
    found = engine.match(np.array(query, np.uint32), namespace)
    return [Match(match.chunk_hash, match.old_st, match.cur_st) for match in found]


def engine_last_access(engine: KeyDirectory, keys: Sequence[ObjectKey]) -> list[float]:
    """Recency is for the evictor, who reads the column; row 0 stands for keys that nobody holds."""
    from processor.state.lookup import _KeyColumns

    rows = _KeyColumns(keys).find(engine._reader)
    return [float(access) for access in np.where(rows, engine._tables.last_access[rows], 0.0)]


def rows_in_use(engine: KeyDirectory) -> dict[str, int]:
    names = {"places": PLACES, "keys": KEYS, "chunks": CHUNKS, "contents": CONTENTS, "claims": CLAIMS}
    names |= {"tokens": TOKENS}
    return {name: int(engine._tables.meta[table + USED]) for name, table in names.items()}


def rows_needed(model: Directory) -> dict[str, int]:
    """What the tables hold if nothing leaks: full contents once, others by rows of `chunk_size` tokens."""
    keys = {place.key for place in model.rows}
    known = model.contents.values()
    full = {c.tokens for c in known if model.blend and len(c.tokens) == model.chunk_size}
    others = [len(c.tokens) for c in known if c.tokens not in full]
    claims = {(key.chunk_hash, key.namespace) for key in model.live_keys() if model.blend}
    return {
        "places": len(model.rows),
        "keys": len(keys),
        "chunks": len({key.chunk_hash for key in keys} | set(model.contents)),
        "contents": len(full),
        "claims": len(claims),
        "tokens": len(full) + sum(-(-length // model.chunk_size) for length in others),
    }
