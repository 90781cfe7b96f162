"""Every rule of the contract, and that its violation names the field and the value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from producer.events import (
    MAX_INT,
    MAX_KV_RANK,
    CacheEventBatch,
    CacheEventEntry,
    ContractError,
    EventType,
    Namespace,
    ObjectKey,
    Tier,
    make_kv_rank,
)

KEY = ObjectKey(b"\1" * 32, "llama", make_kv_rank(8, 3, 8, 3))


def key(**changes: Any) -> ObjectKey:
    return ObjectKey(**{"chunk_hash": b"\1", "model_name": "llama", "kv_rank": 1, **changes})


def entry(**changes: Any) -> CacheEventEntry:
    return CacheEventEntry(**{"key": KEY, **changes})


def batch(**changes: Any) -> CacheEventBatch:
    fields: dict[str, Any] = {
        "instance_id": "server-1",
        "incarnation": 1_700_000_000,
        "seq": 1,
        "event_type": EventType.STORE,
        "tier": Tier.L1,
        "backend": "dram",
    }
    return CacheEventBatch(**{**fields, **changes})


def namespace(**changes: Any) -> Namespace:
    return Namespace(**{"model_name": "llama", **changes})


NOT_INTEGERS = [True, 1.0, math.nan, "1", None, np.int64(1)]
NOT_TEXTS = [1, None, b"x", "\ud800", "x\udfff"]
Make = Callable[..., object]

REFUSED: list[tuple[Make, str, list[Any]]] = [
    (key, "chunk_hash", [b"", b"\0" * 33, "ab", bytearray(b"a"), None]),
    (key, "model_name", ["a@b", *NOT_TEXTS]),
    (key, "kv_rank", [-1, 2**64, *NOT_INTEGERS]),
    (key, "object_group_id", [-1, 2**32, *NOT_INTEGERS]),
    (key, "cache_salt", ["a@b", "a/b", "a\\b", "a\0b", "s" * 129, *NOT_TEXTS]),
    (namespace, "model_name", ["a@b", *NOT_TEXTS]),
    (namespace, "cache_salt", ["a/b", *NOT_TEXTS]),
    (namespace, "world_size", [-1, 256, *NOT_INTEGERS]),
    (entry, "key", [None, "key", ("hash", "model", 1)]),
    (entry, "size_bytes", [-1, 2**63, 10**5000, *NOT_INTEGERS]),
    (
        entry,
        "token_ids",
        [[-1], [2**32], [2**64], [1.0], [True, 2], ["1"], [[1]], [None], "12", b"12", 5, None],
    ),
    (entry, "token_ids", [np.array([1.0]), np.array([[1]]), np.array([-1]), np.array([2**32]), np.array(1)]),
    (entry, "token_offset", [-2, 2**63, *NOT_INTEGERS]),
    (batch, "instance_id", ["", *NOT_TEXTS]),
    (batch, "incarnation", [-1, 2**63, *NOT_INTEGERS]),
    (batch, "seq", [0, -1, 2**63, *NOT_INTEGERS]),
    (batch, "event_type", ["STORE", "move", "", None, 1, []]),
    (batch, "tier", ["all", "l3", "L1", "", None, {}]),
    (batch, "backend", ["", *NOT_TEXTS]),
    (batch, "entries", [[KEY], None, 5, "ab"]),
    (batch, "shared", [1, 0, "true", None]),
    (batch, "ts", [-0.001, math.nan, math.inf, -math.inf, True, "1", None, 10**400]),
    (batch, "capacity_bytes", [-1, 2**63, *NOT_INTEGERS]),
    (batch, "capacity_revision", [-1, 2**63, *NOT_INTEGERS]),
]


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        pytest.param(make, field, value, id=f"{make.__name__}-{field}-{i}-{type(value).__name__}")
        for make, field, values in REFUSED
        for i, value in enumerate(values)
    ],
)
def test_outside_the_contract_a_value_is_refused_by_name(make: Make, field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be .+, got .+") as caught:
        make(**{field: value})
    assert isinstance(caught.value, ContractError)
    assert caught.value.field == field
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (key, "chunk_hash", b"\0"),
        (key, "chunk_hash", b"\0" * 32),
        (key, "model_name", ""),
        (key, "kv_rank", 0),
        (key, "kv_rank", MAX_KV_RANK),
        (key, "object_group_id", 2**32 - 1),
        (key, "cache_salt", "s" * 128),
        (namespace, "world_size", 0),
        (namespace, "world_size", 255),
        (entry, "size_bytes", MAX_INT),
        (entry, "token_offset", -1),
        (entry, "token_offset", MAX_INT),
        (batch, "incarnation", 0),
        (batch, "seq", MAX_INT),
        (batch, "ts", 0.0),
        (batch, "instance_id", "\N{SNOWMAN}"),
    ],
)
def test_the_ends_of_each_range_belong_to_it(make: Make, field: str, value: Any) -> None:
    assert getattr(make(**{field: value}), field) == value


def test_the_value_shown_stays_short_whatever_its_size() -> None:
    with pytest.raises(ContractError) as caught:
        key(cache_salt="s" * 1_000_000)
    assert len(str(caught.value)) < 300


def test_only_an_access_may_leave_the_backend_empty() -> None:
    assert batch(event_type=EventType.ACCESS, backend="").backend == ""
    for event_type in (EventType.STORE, EventType.DELETE, EventType.CONFIG):
        with pytest.raises(ContractError, match="backend must be non-empty"):
            batch(event_type=event_type, backend="")


def test_a_declaration_of_capacity_carries_no_entries() -> None:
    assert batch(event_type=EventType.CONFIG, capacity_bytes=5).entries == ()
    with pytest.raises(ContractError, match="entries must be empty"):
        batch(event_type=EventType.CONFIG, entries=[entry()])


def test_names_on_the_wire_become_enums() -> None:
    made = batch(event_type="delete", tier="l2")
    assert made.event_type is EventType.DELETE
    assert made.tier is Tier.L2


def test_tokens_are_kept_as_an_array_that_nobody_can_change() -> None:
    source = np.array([1, 2, 3], np.uint32)
    made = entry(token_ids=source)
    source[0] = 9
    assert made.token_ids.tolist() == [1, 2, 3]
    assert made.token_ids.dtype == np.uint32
    with pytest.raises(ValueError, match="read-only"):
        made.token_ids[0] = 9


def test_tokens_that_nobody_can_change_are_kept_without_a_copy() -> None:
    source = np.arange(4, dtype=np.uint32)
    source.flags.writeable = False
    assert entry(token_ids=source).token_ids is source
    assert entry(token_ids=source[::2]).token_ids.flags.c_contiguous


def test_entries_compare_by_their_tokens_too() -> None:
    assert entry(token_ids=[1, 2]) == entry(token_ids=(1, 2))
    assert hash(entry(token_ids=[1, 2])) == hash(entry(token_ids=(1, 2)))
    assert entry(token_ids=[1, 2]) != entry(token_ids=[1, 3])
    assert entry(token_ids=[1, 2]) != entry(token_ids=[1, 2], token_offset=0)
    assert entry() != "entry"


def test_a_rank_packs_a_workers_place_and_gives_the_world_size_back() -> None:
    assert make_kv_rank(8, 5, 4, 1) == 0x08_05_04_01
    assert ObjectKey(b"\1", "m", make_kv_rank(255, 254, 255, 254)).world_size == 255
    assert ObjectKey(b"\1", "m", MAX_KV_RANK).world_size == 255


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ((0, 0, 1, 0), "world_size"),
        ((256, 0, 1, 0), "world_size"),
        ((2, 2, 1, 0), "global_rank"),
        ((2, -1, 1, 0), "global_rank"),
        ((2, 0, 0, 0), "local_world_size"),
        ((2, 0, 2, 2), "local_rank"),
        ((True, 0, 1, 0), "world_size"),
    ],
)
def test_a_place_that_does_not_fit_a_rank_is_refused(args: tuple[int, int, int, int], field: str) -> None:
    with pytest.raises(ContractError, match=f"^{field} must be"):
        make_kv_rank(*args)


def test_a_key_knows_its_namespace() -> None:
    assert ObjectKey(b"\1", "m", make_kv_rank(4, 0, 4, 0), 7, "s").namespace == Namespace("m", "s", 4)
