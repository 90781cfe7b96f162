"""Snapshots: pieces marked and copied against full copies, through whatever happens to a directory."""

from __future__ import annotations

import pytest

from processor.state import snapshot as snapshots
from processor.state.directory import KeyDirectory
from processor.state.layout import FREE, HIGH_WATER, TOKENS, USED
from processor.state.snapshot import COLUMNS, Shadow, Snapshot
from tests.processor.state.fleet import Fleet, directory


def full_copy(held: KeyDirectory) -> dict[str, bytes]:
    tables = held.parts.state.tables
    return {
        name: getattr(tables, name)[: tables.meta[column.length]].tobytes()
        for name, column in COLUMNS.items()
    }


def assert_alike(snapshot: Snapshot, copies: dict[str, bytes]) -> None:
    for name, copy in copies.items():
        assert snapshot.columns[name].tobytes() == copy, name


@pytest.mark.parametrize("blend", [True, False], ids=["with blend", "without"])
@pytest.mark.parametrize("bits", [64, 2], ids=["", "colliding"])
@pytest.mark.parametrize("chunks", [40, 5_000], ids=["few chunks", "many"])
def test_changed_pieces_on_top_of_the_last_snapshot_are_a_full_copy(
    blend: bool, bits: int, chunks: int
) -> None:
    held = directory(blend=blend, bits=bits)
    shadow = Shadow(held.parts)
    fleet = Fleet(held, chunks, chunks)
    for round in range(200):
        for _ in range(int(fleet.random.choice([1, 1, 2, 3, 30]))):
            fleet.step()
        if round % 3 == 0:
            shadow.collect()
            shadow.copy()
            fleet.step()
        snapshot = shadow.freeze()
        assert_alike(snapshot, full_copy(held))
        shadow.release()
        shadow.settle()


def test_what_a_failed_copy_left_out_is_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held = directory()
    shadow = Shadow(held.parts)
    fleet = Fleet(held, 1, 200)
    for _ in range(100):
        fleet.step()
    monkeypatch.setattr(snapshots, "ALONE_BYTES", 0)

    def refuse(*work: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(shadow._helper, "submit", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            shadow.freeze()
    assert_alike(shadow.freeze(), full_copy(held))


def test_token_rows_freed_while_a_snapshot_is_read_wait_until_it_has_been() -> None:
    held = directory()
    fleet = Fleet(held, 1, 200)
    for _ in range(300):
        fleet.step()
    meta = held.parts.state.tables.meta
    shadow = Shadow(held.parts)
    snapshot = shadow.freeze()
    before = snapshot.columns["tokens"].copy()
    in_use = rows_in_use(held)
    for _ in range(300):
        fleet.step()
    assert (snapshot.columns["tokens"][in_use] == before[in_use]).all()
    high_water = int(meta[TOKENS + HIGH_WATER])
    shadow.release()
    assert meta[TOKENS + FREE]
    free = high_water - 1 - int(meta[TOKENS + USED])
    fleet.store_new(free)
    assert meta[TOKENS + HIGH_WATER] == high_water
    fleet.store_new(1)
    assert meta[TOKENS + HIGH_WATER] == high_water + 1


def rows_in_use(held: KeyDirectory) -> list[int]:
    """The rows of tokens that some chunk leads to."""
    tables = held.parts.state.tables
    free, row = set(), int(tables.meta[TOKENS + FREE])
    while row:
        free.add(row)
        row = int(tables.token_next[row])
    return [row for row in range(1, int(tables.meta[TOKENS + HIGH_WATER])) if row not in free]


def test_a_state_that_is_full_refuses_tokens_rather_than_take_rows_that_are_being_read() -> None:
    held = directory(max_chunks=8)
    fleet = Fleet(held, 2, 8)
    shadow = Shadow(held.parts)
    for _ in range(20):
        fleet.step()
        shadow.freeze()
        for _ in range(30):
            fleet.step()
            meta = held.parts.state.tables.meta
            assert meta[TOKENS + HIGH_WATER] <= len(held.parts.state.tables.tokens)
        shadow.release()
