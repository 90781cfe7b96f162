"""What waits in an emitter: kept in order, grouped by kind, bounded, and drained at one moment."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from producer.bindings import UNBOUND
from producer.changes import Capacity, ChangeLog, Group, Kind
from producer.events import ContractError, EventType, ObjectKey, Tier
from tests.clock import Clock

STORE = Kind(EventType.STORE, Tier.L1, "dram")
DELETE = Kind(EventType.DELETE, Tier.L1, "dram")
KEYS = [ObjectKey(bytes([number]) * 32, "llama", 1) for number in range(6)]
TOKENS = np.arange(4, dtype=np.uint32)


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def log(clock: Clock) -> ChangeLog:
    return ChangeLog(max_waiting=4, max_bindings=8, clock=clock)


def outline(groups: list[Group]) -> list[tuple[Kind | None, list[ObjectKey]]]:
    return [(group.kind, [row[0] for row in group.rows]) for group in groups]


def test_changes_of_one_kind_are_kept_together_until_another_comes_between(log: ChangeLog) -> None:
    log.note(DELETE, KEYS[:1])
    log.note(Kind(EventType.DELETE, Tier.L1, "dram"), KEYS[1:2])
    log.note(STORE, KEYS[2:3], [7])
    log.note(DELETE, KEYS[3:4])
    assert outline(log.drain().groups) == [(DELETE, KEYS[:2]), (STORE, KEYS[2:3]), (DELETE, KEYS[3:4])]


@pytest.mark.parametrize(
    "other",
    [
        Kind(EventType.ACCESS, Tier.L1, "dram"),
        Kind(EventType.DELETE, Tier.L2, "dram"),
        Kind(EventType.DELETE, Tier.L1, "hbm"),
        Kind(EventType.DELETE, Tier.L1, "dram", shared=True),
    ],
)
def test_kinds_differ_in_anything(log: ChangeLog, other: Kind) -> None:
    log.note(DELETE, KEYS[:1])
    log.note(other, KEYS[1:2])
    assert [group.kind for group in log.drain().groups] == [DELETE, other]


def test_a_store_takes_its_sizes_and_the_tokens_bound_by_then(log: ChangeLog) -> None:
    log.bind([(KEYS[0].chunk_hash, TOKENS, 8)])
    log.note(STORE, KEYS[:2], [10, 20])
    log.bind([(KEYS[1].chunk_hash, TOKENS, 12)])
    (group,) = log.drain().groups
    assert [(row[1], row[2]) for row in group.rows] == [(10, (TOKENS, 8)), (20, UNBOUND)]
    assert log.unbound == 1


def test_other_changes_have_neither_size_nor_tokens(log: ChangeLog) -> None:
    log.bind([(KEYS[0].chunk_hash, TOKENS, 8)])
    log.note(DELETE, KEYS[:1])
    (group,) = log.drain().groups
    assert group.rows == [(KEYS[0], 0, UNBOUND)]
    assert log.unbound == 0


@pytest.mark.parametrize("sizes", [[], [1], [1, 2, 3]])
def test_a_store_without_a_size_a_key_is_refused_whole(log: ChangeLog, sizes: list[int]) -> None:
    with pytest.raises(ContractError, match="as many as the 2 keys"):
        log.note(STORE, KEYS[:2], sizes)
    assert (log.drain().groups, log.waiting, log.refused) == ([], 0, 0)


def test_what_finds_no_room_leaves_one_hole_in_its_place_and_what_fits_goes_on(log: ChangeLog) -> None:
    log.note(DELETE, KEYS[:3])
    log.note(STORE, KEYS[:2], [1, 1])
    log.note(STORE, KEYS[:2], [1, 1])
    log.note(DELETE, KEYS[3:4])
    assert (log.waiting, log.refused) == (4, 4)
    assert outline(log.drain().groups) == [(DELETE, KEYS[:3]), (None, []), (DELETE, KEYS[3:4])]
    assert log.waiting == 0
    log.note(DELETE, KEYS[:4])
    assert log.refused == 4, "draining makes room"


def test_a_hole_can_be_left_for_what_was_never_noted(log: ChangeLog) -> None:
    log.leave_hole(3)
    log.leave_hole(2)
    assert (outline(log.drain().groups), log.refused) == ([(None, [])], 5)


def test_once_closed_it_takes_nothing_more_and_says_so(log: ChangeLog) -> None:
    log.note(DELETE, KEYS[:1])
    log.close()
    log.note(DELETE, KEYS[1:2])
    assert (outline(log.drain().groups), log.refused) == ([(DELETE, KEYS[:1]), (None, [])], 1)


def test_a_group_is_of_the_time_of_its_last_change_and_no_time_falls(log: ChangeLog, clock: Clock) -> None:
    log.note(DELETE, KEYS[:1])
    clock.now = 103.0
    log.note(DELETE, KEYS[1:2])
    clock.now = 50.0
    log.note(STORE, KEYS[:1], [1])
    drained = log.drain()
    assert [group.ts for group in drained.groups] == [103.0, 103.0]
    assert drained.ts == 103.0
    clock.now = 110.0
    assert log.drain().ts == 110.0


def test_of_two_declarations_the_later_goes_and_one_made_again_yields(log: ChangeLog) -> None:
    first, second = [Capacity(Tier.L1, "dram", size) for size in (1, 2)]
    log.declare([first])
    log.declare([second])
    log.declare([first], again=True)
    assert list(log.drain().capacities) == [second]
    log.declare([first], again=True)
    assert list(log.drain().capacities) == [first]
    assert list(log.drain().capacities) == [], "a declaration goes once"


def test_bindings_that_gave_way_are_counted(clock: Clock) -> None:
    log = ChangeLog(max_waiting=10, max_bindings=2, clock=clock)
    log.bind([(key.chunk_hash, TOKENS, 0) for key in KEYS[:3]])
    assert log.evicted == 2


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Kind(EventType.STORE, "l3", "dram"), "tier"),  # type: ignore[arg-type]
        (lambda: Kind(EventType.STORE, Tier.L1, ""), "backend"),
        (lambda: Kind(EventType.STORE, Tier.L1, "dram", shared=1), "shared"),  # type: ignore[arg-type]
        (lambda: Capacity(Tier.L1, "dram", -1), "capacity_bytes"),
        (lambda: Capacity(Tier.L1, "", 1), "backend"),
        (lambda: Capacity("", "dram", 1), "tier"),  # type: ignore[arg-type]
    ],
)
def test_kinds_and_capacities_check_themselves(make: Any, field: str) -> None:
    with pytest.raises(ContractError, match=field):
        make()


def test_a_tier_may_be_given_by_name() -> None:
    assert Kind(EventType.STORE, "l2", "disk").tier is Tier.L2  # type: ignore[arg-type]
    assert Capacity("l2", "disk", 1).tier is Tier.L2  # type: ignore[arg-type]


def test_threads_that_note_and_drain_at_once_lose_nothing_and_keep_their_order(clock: Clock) -> None:
    log = ChangeLog(max_waiting=1_000_000, max_bindings=8, clock=clock)
    names = [ObjectKey(bytes([thread]), "llama", 1) for thread in range(4)]
    drained: list[Group] = []

    def run(key: ObjectKey) -> None:
        for size in range(2_000):
            log.note(STORE, [key], [size])

    threads = [threading.Thread(target=run, args=(key,)) for key in names]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        drained += log.drain().groups
    drained += log.drain().groups
    for key in names:
        sizes = [size for group in drained for each, size, _ in group.rows if each == key]
        assert sizes == list(range(2_000))
