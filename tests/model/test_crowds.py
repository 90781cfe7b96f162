"""Many of everything: tables that grow, a filter that is rebuilt, chunks that everybody has."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest

from processor.state.directory import KeyDirectory, Match
from processor.state.layout import FILTER_VERSION
from producer.events import EventType, Namespace, Tier
from tests.model.crowd import NAMESPACE, change, chunk_hash, key, texts

STORE, DELETE = EventType.STORE, EventType.DELETE
CHUNK_SIZE = 8


def make_directory(max_chunks: int = 1 << 16) -> KeyDirectory:
    return KeyDirectory(chunk_size=CHUNK_SIZE, max_chunks=max_chunks)


def test_tables_that_grow_and_shrink_lose_and_invent_nothing() -> None:
    directory = make_directory()
    rng = random.Random(3)
    contents = texts(20_000, CHUNK_SIZE)
    held: dict[int, int] = {}
    for seq in range(1, 61):
        size = seq
        if seq % 3:
            numbers = rng.sample(range(20_000), 1000)
            directory.consume(change(STORE, numbers, seq, tokens=contents[numbers], size=size))
            held.update(dict.fromkeys(numbers, size))
        else:
            numbers = rng.sample(sorted(held), len(held) // 3) + rng.sample(range(20_000), 20)
            directory.consume(change(DELETE, numbers, seq))
            for number in numbers:
                held.pop(number, None)
        stats = directory.stats()
        assert (stats.num_keys, stats.num_placements, stats.num_tombstones) == (len(held), len(held), 0)
        assert stats.l1_size_bytes == sum(held.values())
        assert stats.blend.num_contents == stats.blend.num_claims == len(held)
    infos = directory.lookup([key(number) for number in range(20_000)])
    assert {i: info.placements[0].size_bytes for i, info in enumerate(infos) if info.placements} == held
    assert all(np.array_equal(infos[i].token_ids, contents[i]) for i in held)
    total, listed = directory.list_keys(None, "", "", 0, 30_000)
    assert total == len(held)
    assert {info.key for info in listed} == {key(number) for number in held}
    found = directory.match(contents.reshape(-1), NAMESPACE)
    assert found == [Match(chunk_hash(i), 0, CHUNK_SIZE * i) for i in sorted(held)]


def test_matches_stay_complete_while_the_filter_is_rebuilt() -> None:
    directory = make_directory()
    lasting = texts(500, CHUNK_SIZE, seed=99)
    directory.consume(change(STORE, range(500), 1, tokens=lasting))
    expected = [Match(chunk_hash(i), 0, CHUNK_SIZE * i) for i in range(500)]
    seq = 1
    for generation in range(8):
        passing = texts(3000, CHUNK_SIZE, seed=generation)
        numbers = range(1000 * (generation + 1), 1000 * (generation + 1) + 3000)
        for begin in range(0, 3000, 250):
            seq += 1
            part = slice(begin, begin + 250)
            directory.consume(change(STORE, numbers[part], seq, tokens=passing[part]))
            assert directory.match(lasting.reshape(-1), NAMESPACE) == expected
        assert len(directory.match(passing.reshape(-1), NAMESPACE)) == 3000
        for begin in range(0, 3000, 250):
            seq += 1
            directory.consume(change(DELETE, numbers[begin : begin + 250], seq))
            assert directory.match(lasting.reshape(-1), NAMESPACE) == expected
        assert directory.match(passing.reshape(-1), NAMESPACE) == []
    assert directory._tables.meta[FILTER_VERSION] >= 8


def fastest(call: Callable[[], object], attempts: int = 7) -> float:
    """Seconds of the fastest of several calls, which other processes disturb least."""
    times = []
    for _ in range(attempts):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


CROWD, FEW, TIMES_DEARER = 10_000, 10, 12
"""Walking a crowd would cost a thousand times as much; caches and deeper trees, a few times."""

TEXT = texts(1, CHUNK_SIZE)


def tenants(directory: KeyDirectory, count: int) -> None:
    salts = [f"s{i}" for i in range(count)]
    for begin in range(0, count, 500):
        part = salts[begin : begin + 500]
        text = np.repeat(TEXT, len(part), axis=0)
        directory.consume(change(STORE, [0] * len(part), begin + 1, tokens=text, salts=part))


def servers(directory: KeyDirectory, count: int) -> None:
    for i in range(count):
        directory.consume(change(STORE, [0], 1, tokens=TEXT, instance=f"i{i}"))


def prefixes(directory: KeyDirectory, count: int) -> None:
    for begin in range(0, count, 500):
        numbers = range(begin, min(begin + 500, count))
        text = np.repeat(TEXT, len(numbers), axis=0)
        directory.consume(change(STORE, numbers, begin + 1, tokens=text))


def claimed_backwards(directory: KeyDirectory, count: int) -> None:
    """A first tenant stores under many prefixes; a second claims them all, the last one first."""
    prefixes(directory, count)
    for begin in range(0, count, 500):
        numbers = range(count - begin - 1, max(count - begin - 501, -1), -1)
        directory.consume(change(STORE, numbers, begin + 1, salts=["late"], instance="b"))


@pytest.mark.parametrize("crowd", [tenants, servers, prefixes, claimed_backwards])
def test_a_chunk_that_everybody_has_costs_no_more_than_one_that_few_have(
    crowd: Callable[[KeyDirectory, int], None],
) -> None:
    directories = [make_directory(), make_directory()]
    for directory, count in zip(directories, (FEW, CROWD), strict=True):
        crowd(directory, count)
    text = np.repeat(TEXT, 64, axis=0)
    query = np.concatenate([TEXT[0], np.arange(2000, dtype=np.uint32) + 5])

    def store_and_delete(directory: KeyDirectory) -> Callable[[], None]:
        salts = [f"new{i}" for i in range(64)]
        seq = [1_000_000]

        def run() -> None:
            seq[0] += 2
            directory.consume(change(STORE, [0] * 64, seq[0], tokens=text, salts=salts, instance="new"))
            directory.consume(change(DELETE, [0] * 64, seq[0] + 1, salts=salts, instance="new"))

        return run

    def match(directory: KeyDirectory) -> Callable[[], object]:
        return lambda: [directory.match(query, NAMESPACE) for _ in range(20)]

    for act in (store_and_delete, match):
        few, many = (fastest(act(directory)) for directory in directories)
        assert many < TIMES_DEARER * few


def test_occupants_are_named_in_the_order_in_which_they_were_indexed_however_they_were_claimed() -> None:
    directory = make_directory()
    claimed_backwards(directory, 3000)
    directory.consume(change(DELETE, range(0, 3000, 2), 10_000, salts=["late"], instance="b"))
    query = np.repeat(TEXT, 200, axis=0).reshape(-1)
    found = directory.match(query, Namespace("m", "late"))
    assert [m.chunk_hash for m in found] == [chunk_hash(2 * i + 1) for i in range(200)]
    assert [m.cur_st for m in found] == [CHUNK_SIZE * i for i in range(200)]


def test_fencing_one_of_many_servers_takes_only_what_it_had() -> None:
    directory = make_directory()
    servers(directory, 2000)
    directory.consume(change(STORE, range(1, 1000), 2, tokens=texts(999, CHUNK_SIZE), instance="i7"))
    directory.consume(change(STORE, [5], 3, instance="i7", tier=Tier.L2))
    directory.fence("i7")
    stats = directory.stats()
    assert (stats.num_placements, stats.l1_count, stats.num_keys) == (2000, 1999, 2)
    assert "i7" not in stats.l1_keys_by_instance


def test_what_no_longer_fits_is_refused_and_counted_and_the_rest_stays_right() -> None:
    directory = make_directory(max_chunks=50)
    contents = texts(80, CHUNK_SIZE)
    directory.consume(change(STORE, range(80), 1, tokens=contents))
    assert directory.stats().refused == 30
    assert directory.stats().num_keys == 50
    assert directory.capacity_used() == 1.0
    assert len(directory.match(contents.reshape(-1), NAMESPACE)) == 50
    assert [len(info.placements) for info in directory.lookup([key(49), key(50)])] == [1, 0]

    directory.consume(change(STORE, range(50), 1, instance="b", salts=["t"]))
    assert (directory.stats().refused, directory.stats().num_keys) == (30, 100)
    directory.consume(change(DELETE, range(40), 2))
    directory.consume(change(DELETE, range(40), 2, instance="b", salts=["t"]))
    directory.consume(change(STORE, range(50, 80), 3, tokens=contents[50:]))
    assert (directory.stats().refused, directory.stats().num_keys) == (30, 50)
    found = directory.match(contents.reshape(-1), NAMESPACE)
    assert [m.chunk_hash for m in found] == [chunk_hash(i) for i in range(40, 80)]


def test_contents_that_do_not_fit_are_refused_without_a_trace() -> None:
    directory = make_directory(max_chunks=16)
    longest = texts(10, 16 * CHUNK_SIZE)
    directory.consume(change(STORE, range(10), 1, tokens=longest))
    counts = [info.num_tokens for info in directory.lookup([key(i) for i in range(10)])]
    kept = [i for i, count in enumerate(counts) if count]
    assert set(counts) == {0, 16 * CHUNK_SIZE}
    assert len(kept) == 3
    assert directory.stats().refused == 7
    directory.consume(change(DELETE, range(10), 2))
    assert directory.capacity_used() == 0.0
    assert directory.interned() == {"instances": 0, "scopes": 0, "sites": 0}


def test_without_the_index_contents_are_kept_for_lookups_alone() -> None:
    directory = KeyDirectory(chunk_size=CHUNK_SIZE, max_chunks=1024, enable_blend=False)
    contents = texts(100, CHUNK_SIZE)
    directory.consume(change(STORE, range(100), 1, tokens=contents))
    assert directory.match(contents.reshape(-1), NAMESPACE) == []
    assert np.array_equal(directory.lookup([key(7)])[0].token_ids, contents[7])
    blend = directory.stats().blend
    assert (blend.num_contents, blend.num_chunks, blend.num_claims, blend.num_namespaces) == (0, 0, 0, 0)
