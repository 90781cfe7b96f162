"""Stories that a random fleet tells too rarely, told to model and engine alike."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from processor.state.directory import KeyDirectory
from producer.events import CacheEventBatch, CacheEventEntry, EventType, Namespace, ObjectKey, Tier
from tests.model.compare import assert_same_directory, assert_same_keys
from tests.model.crowd import NAMESPACE, RANK, change, key, texts
from tests.model.directory import Directory
from tests.model.directory_machine import Both
from tests.model.gate import Gate

STORE, DELETE, ACCESS = EventType.STORE, EventType.DELETE, EventType.ACCESS
L1, L2 = Tier.L1, Tier.L2
TEXT = (1, 1, 1, 1)
FIRST, SECOND = (ObjectKey(b"c", "m", RANK, group) for group in (0, 1))


def batch(
    incarnation: int,
    seq: int,
    kind: EventType,
    keys: Sequence[ObjectKey],
    tier: Tier = L1,
    *,
    tokens: tuple[int, ...] = (),
    shared: bool = False,
) -> CacheEventBatch:
    entries = [CacheEventEntry(key, 1, tokens, 0) for key in keys]
    ts = 100.0 * incarnation + seq
    return CacheEventBatch("a", incarnation, seq, kind, tier, "x", entries, shared=shared, ts=ts)


class Pair:
    """A model and an engine behind the model's gate."""

    def __init__(self) -> None:
        self.model = Directory(4)
        self.engine = KeyDirectory(chunk_size=4, max_chunks=1024)
        self.gate = Gate(Both(self.model, self.engine))

    def hear(self, batches: Sequence[CacheEventBatch]) -> None:
        for told in batches:
            self.gate.offer(told)
            self.compare()

    def compare(self) -> None:
        query = [*TEXT, 0, *TEXT]
        assert_same_directory(self.model, self.engine, [FIRST, SECOND], [NAMESPACE], query)


LATE_IN_MEMORY = {
    "an access to a shared pool that died with its incarnation": [
        batch(1, 2, STORE, [FIRST], L2, shared=True),
        batch(2, 1, STORE, [FIRST], L2),
        batch(1, 1, ACCESS, [FIRST], L1, shared=True),
    ],
    "a store over a delete that was remembered": [
        batch(1, 3, DELETE, [FIRST]),
        batch(1, 5, STORE, [SECOND], L2),
        batch(2, 1, STORE, [SECOND], L2),
        batch(1, 4, STORE, [FIRST], tokens=TEXT),
    ],
    "a store, with tokens, over the only row of its chunk": [
        batch(1, 3, DELETE, [FIRST]),
        batch(1, 5, ACCESS, []),
        batch(2, 1, ACCESS, []),
        batch(1, 4, STORE, [FIRST], tokens=TEXT),
        batch(1, 1, STORE, [SECOND], L2),
    ],
    "a store in a shared pool": [
        batch(1, 2, ACCESS, []),
        batch(2, 1, STORE, [SECOND], L2),
        batch(1, 1, STORE, [FIRST], tokens=TEXT, shared=True),
    ],
}


@pytest.mark.parametrize("story", LATE_IN_MEMORY.values(), ids=list(LATE_IN_MEMORY))
def test_what_an_older_incarnation_had_in_memory_comes_late(story: list[CacheEventBatch]) -> None:
    pair = Pair()
    pair.hear(story)
    pair.gate.tick(0.0, 10_000.0, 0.0)
    pair.compare()
    pair.gate.accept_loss("a")
    pair.gate.tick(0.0, 10_000.0, 0.0)
    pair.compare()


def test_what_lies_dormant_goes_with_the_next_word_on_its_chunk_once_nothing_is_missing() -> None:
    pair = Pair()
    pair.hear([batch(1, 2, STORE, [FIRST], tokens=TEXT)])
    pair.gate.reset("a")
    pair.compare()
    assert pair.model.contents
    pair.hear([batch(1, 1, DELETE, [SECOND], L2)])
    assert not pair.model.contents


def test_copies_in_other_groups_are_found_in_a_fleet_of_many_groups() -> None:
    pair = Pair()
    many = [ObjectKey(b"d", "m", RANK, group) for group in range(200)]
    pair.hear([batch(1, 1, STORE, many, L2)])
    pair.hear([batch(1, 2, STORE, [ObjectKey(b"c", "m", RANK, 1000), ObjectKey(b"c", "m", RANK, 1001)], L2)])
    foreign = [ObjectKey(b"c", "m", RANK, 0, "s"), ObjectKey(b"c", "n", RANK, 0), ObjectKey(b"e", "m", RANK)]
    unheld = ObjectKey(b"c", "m", RANK, 2000)
    assert_same_keys(pair.model, pair.engine, [unheld, FIRST, many[0], *foreign])


def test_lookups_intern_nothing_and_names_go_with_their_last_row() -> None:
    directory = KeyDirectory(chunk_size=4, max_chunks=1024)
    directory.consume(change(STORE, [1, 2], 1, tokens=texts(2, 4), salts=["s", "t"]))
    assert directory.interned() == {"instances": 1, "scopes": 2, "sites": 1}
    stranger = ObjectKey(b"c", "stranger", RANK, 7, "stranger")
    directory.lookup([stranger])
    directory.expand_groups([stranger])
    directory.list_keys(L1, "stranger", "stranger", 0, 10)
    directory.match(texts(1, 4)[0], Namespace("stranger", "stranger", 3))
    directory.consume(change(ACCESS, [9], 2, salts=["stranger"], instance="stranger"))
    directory.consume(change(DELETE, [9], 1, salts=["stranger"], instance="stranger"))
    directory.fence("stranger")
    assert directory.interned() == {"instances": 1, "scopes": 2, "sites": 1}

    directory.consume(change(DELETE, [2], 3, salts=["t"]))
    assert directory.interned() == {"instances": 1, "scopes": 1, "sites": 1}
    directory.fence("a")
    assert directory.interned() == {"instances": 0, "scopes": 0, "sites": 0}
    assert directory.capacity_used() == 0.0


def test_a_reader_beside_the_writer_sees_whole_entries_and_never_fails() -> None:
    """Every store of a chunk says its size, tokens and offset anew; whoever looks sees those of one store."""
    directory = KeyDirectory(chunk_size=4, max_chunks=1 << 14)
    contents = [texts(600, 4, seed=seed) for seed in range(3)]
    numbers = range(600)
    done = threading.Event()
    failures: list[BaseException] = []
    seen: set[int] = set()

    def read() -> None:
        keys = [key(number) for number in numbers]
        try:
            while not done.is_set():
                for info in directory.lookup(keys):
                    number = int.from_bytes(info.key.chunk_hash, "big")
                    said = [p.size_bytes for p in info.placements]
                    assert len(said) <= 1
                    tokens = contents[said[0]][number] if said else []
                    assert info.token_ids.tolist() == list(tokens)
                for seed, content in enumerate(contents):
                    for match in directory.match(content.reshape(-1), NAMESPACE):
                        assert match.old_st == seed
                        assert match.cur_st == 4 * int.from_bytes(match.chunk_hash, "big")
                        seen.add(seed)
                stats = directory.stats()
                assert stats.num_keys == stats.num_placements == stats.blend.num_claims <= 600
                total, page = directory.list_keys(None, "a", "x", 0, 600)
                assert len(page) <= total <= 600
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    seq = 0
    while not failures and (seq < 300 or (len(seen) < 3 and seq < 30_000)):
        seq += 1
        said = seq % 4
        if said < 3:
            directory.consume(change(STORE, numbers, seq, tokens=contents[said], offset=said, size=said))
        else:
            directory.consume(change(DELETE, numbers, seq))
    done.set()
    for reader in readers:
        reader.join()
    assert not failures, failures[0]
    assert seen == {0, 1, 2}
    assert np.array_equal(
        directory.lookup([key(5)])[0].token_ids, contents[seq % 4][5] if seq % 4 < 3 else []
    )
