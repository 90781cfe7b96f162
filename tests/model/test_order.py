"""The state is a function of the log: however late, doubled and shuffled a history is read, it ends the same.

Here the reference model is held against itself; what it promises, the engine is then held to.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from producer.events import CacheEventBatch, Namespace, ObjectKey
from tests.model.directory import Directory, Held
from tests.model.fleets import CHUNK_SIZE, NAMESPACES, Telling, deliveries, histories, in_order
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
    assert not any(stream.gap_detected or stream.holes or stream.conflict for stream in gate.streams.values())


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
