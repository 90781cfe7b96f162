"""The state is a function of the log: however late, doubled and shuffled a history is read, it ends the same.

Here the reference model is held against itself; what it promises, the engine is then held to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.events import CacheEventBatch, CacheEventEntry, EventType, Namespace, ObjectKey, Tier
from tests.model.directory import Directory, Held
from tests.model.fleets import CHUNK_SIZE, NAMESPACES, RANKS, Telling, deliveries, histories, in_order
from tests.model.gate import Gate, Result


def read(batches: Sequence[CacheEventBatch]) -> tuple[Gate, Directory]:
    directory = Directory(CHUNK_SIZE)
    gate = Gate(directory)
    for batch in batches:
        gate.offer(batch, (0, 0))
    return gate, directory


def placements(directory: Directory) -> dict[ObjectKey, list[Held]]:
    return {key: directory.placements(key) for key in directory.live_keys()}


def claims(directory: Directory) -> set[tuple[bytes, Namespace]]:
    return {(chunk, name) for chunk in directory.occupants for name in directory.namespaces_of(chunk)}


def positions(directory: Directory, history: Sequence[CacheEventBatch]) -> set[tuple[int, Namespace]]:
    """Where a query that holds every content of the history twice finds something, for every namespace."""
    query = [token for batch in history for entry in batch.entries for token in entry.token_ids.tolist()] * 2
    return {(match.cur_st, name) for name in NAMESPACES for match in directory.match(query, name)}


def tokens(directory: Directory) -> dict[ObjectKey, tuple[int, ...]]:
    return {key: ids for key in directory.live_keys() if (ids := directory.token_ids(key))}


@st.composite
def read_twice(draw: st.DrawFn, telling: Telling) -> tuple[list[CacheEventBatch], ...]:
    """A history, its streams in order but taking turns anew, and a delivery that takes the same turns."""
    history = draw(histories(telling))
    turns = draw(st.permutations([batch.instance_id for batch in history]))
    return history, in_order(history, turns), draw(deliveries(history, turns))


@given(read_twice(Telling(always=False)))
def test_any_delivery_ends_in_the_placements_of_the_history_and_clears_every_gap(
    drawn: tuple[list[CacheEventBatch], ...],
) -> None:
    history, _, delivery = drawn
    (_, expected), (gate, directory) = read(history), read(delivery)
    assert placements(directory) == placements(expected)
    assert not any(s.gap_detected or s.holes or s.contradicted for s in gate.streams.values())


@given(read_twice(Telling(always=False)))
def test_any_delivery_knows_at_least_what_the_same_turns_in_order_know(
    drawn: tuple[list[CacheEventBatch], ...],
) -> None:
    _, ordered, delivery = drawn
    (_, least), (_, directory) = read(ordered), read(delivery)
    assert tokens(least).items() <= tokens(directory).items()
    assert claims(least) <= claims(directory)
    assert positions(least, ordered) <= positions(directory, ordered)


@given(read_twice(Telling(always=True)))
def test_where_every_store_tells_all_any_delivery_ends_equal(
    drawn: tuple[list[CacheEventBatch], ...],
) -> None:
    history, _, delivery = drawn
    (_, expected), (_, directory) = read(history), read(delivery)
    assert tokens(directory) == tokens(expected)
    assert claims(directory) == claims(expected)
    assert positions(directory, history) == positions(expected, history)
    assert directory.counts() == expected.counts()


@given(read_twice(Telling(always=False)))
def test_a_second_reading_of_a_log_changes_nothing(drawn: tuple[list[CacheEventBatch], ...]) -> None:
    _, _, delivery = drawn
    gate, directory = read(delivery)
    before = placements(directory), tokens(directory), claims(directory)
    results = {gate.offer(batch, (0, 0)) for batch in delivery}
    assert results <= {Result.DUPLICATE, Result.STALE}
    assert (placements(directory), tokens(directory), claims(directory)) == before


STORE, DELETE = EventType.STORE, EventType.DELETE
ACTIONS = [
    (kind, group, told) for kind in (STORE, DELETE) for group in (0, 1) for told in {kind is STORE, False}
]
"""Store or delete one of two keys of one chunk; a store tells the chunk's tokens or does not."""


def short_histories(tier: Tier, length: int) -> Iterator[list[CacheEventBatch]]:
    """Every history of one emitter of that length, restarted before the last batch or not at all."""
    for actions, restarted in product(product(ACTIONS, repeat=length), (False, True)):
        history = []
        for index, (kind, group, told) in enumerate(actions):
            key = ObjectKey(b"c", "m", RANKS[0], group)
            entry = CacheEventEntry(key, 1, (7,) * CHUNK_SIZE if told else (), 0)
            after = restarted and index == length - 1
            incarnation, seq = (2, 1) if after else (1, index + 1)
            # What a restart leaves is L2; before it, the first key is in memory.
            where = Tier.L1 if restarted and group == 0 else tier
            history.append(
                CacheEventBatch("a", incarnation, seq, kind, where, "x", [entry], ts=1000.0 + index)
            )
        yield history


def orders(history: list[CacheEventBatch]) -> Iterator[list[CacheEventBatch]]:
    """Every order in which an incarnation's last batch comes before the next one's first."""
    for order in permutations(history):
        began = [batch.incarnation for batch in order]
        last = {batch.incarnation: batch for batch in history}
        if all(order.index(last[i - 1]) < began.index(i) for i in set(began) if i - 1 in last):
            yield list(order)


@pytest.mark.parametrize("tier", Tier)
def test_every_order_of_every_short_history_ends_in_its_placements_and_at_least_its_tokens(
    tier: Tier,
) -> None:
    for history in short_histories(tier, 3):
        _, expected = read(history)
        for order in orders(history):
            gate, directory = read(order)
            assert placements(directory) == placements(expected), order
            assert tokens(expected).items() <= tokens(directory).items(), order
            assert not gate.streams["a"].holes


def batch_of(
    instance: str, seq: int, kind: EventType, groups: Sequence[int], told: Sequence[bool], ts: float
) -> CacheEventBatch:
    """A private batch of keys of one chunk, one an object group."""
    entries = [
        CacheEventEntry(ObjectKey(b"c", "m", RANKS[0], group), 1, (7,) * CHUNK_SIZE if tells else (), 0)
        for group, tells in zip(groups, told, strict=True)
    ]
    return CacheEventBatch(instance, 1, seq, kind, Tier.L1, "x", entries, ts=ts)


def test_tokens_outlive_the_last_key_while_another_emitters_store_is_still_to_come() -> None:
    told = batch_of("a", 1, STORE, [0], [True], ts=1)
    late = batch_of("b", 1, STORE, [1], [False], ts=2)
    gone = batch_of("a", 2, DELETE, [0], [False], ts=3)
    later = batch_of("b", 2, EventType.ACCESS, [1], [False], ts=4)
    _, expected = read([told, late, gone, later])
    _, directory = read([told, later, gone, late])
    assert tokens(directory) == tokens(expected) != {}


def test_the_last_repair_of_a_stream_tells_its_later_entries_what_a_deleted_one_knew() -> None:
    told = batch_of("a", 1, STORE, [0, 1], [True, False], ts=1)
    gone = batch_of("a", 2, DELETE, [0], [False], ts=2)
    _, expected = read([told, gone])
    _, directory = read([gone, told])
    assert tokens(directory) == tokens(expected) != {}


def test_a_chunk_whose_last_key_goes_while_nothing_is_missing_forgets_its_tokens() -> None:
    told = batch_of("a", 1, STORE, [0], [True], ts=1)
    gone = batch_of("a", 2, DELETE, [0], [False], ts=2)
    again = batch_of("a", 3, STORE, [0], [False], ts=3)
    _, directory = read([told, gone, again])
    assert tokens(directory) == {}
