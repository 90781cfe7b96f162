"""Both forms of the wire: round trips, what a record looks like, and what is refused."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier, make_kv_rank
from producer.wire import (
    Wire,
    WireError,
    decode,
    decode_batch,
    encode_batch,
    encode_columns,
    encode_rows,
)
from tests.producer.strategies import batches

Encode = Callable[[list[CacheEventBatch]], bytes]
either = pytest.mark.parametrize("encode", [encode_rows, encode_columns])


def batch_of(*entries: CacheEventEntry) -> CacheEventBatch:
    return CacheEventBatch("server-1", 1_700_000_000, 1, EventType.STORE, Tier.L1, "dram", entries, ts=1.5)


def tp8_store() -> CacheEventBatch:
    return batch_of(
        *(
            CacheEventEntry(ObjectKey(b"\1" * 32, "llama", make_kv_rank(8, r, 8, r)), 10, range(256), 512)
            for r in range(8)
        )
    )


@either
@given(sent=st.lists(batches(), max_size=3))
def test_an_envelope_comes_back_as_it_was_sent(encode: Encode, sent: list[CacheEventBatch]) -> None:
    assert decode(encode(sent)) == sent


@pytest.mark.parametrize("wire", Wire)
@given(sent=batches())
def test_a_single_batch_comes_back_as_it_was_sent(wire: Wire, sent: CacheEventBatch) -> None:
    assert decode_batch(encode_batch(sent, wire)) == sent


def test_rows_are_the_form_that_lmcache_reads() -> None:
    key = ObjectKey(b"\xab\xcd", "llama", make_kv_rank(2, 1, 2, 1), 3, "tenant")
    assert orjson.loads(encode_rows([batch_of(CacheEventEntry(key, 9, [5, 6], 256))])) == {
        "batches": [
            {
                "instance_id": "server-1",
                "incarnation": 1_700_000_000,
                "seq": 1,
                "event_type": "store",
                "tier": "l1",
                "backend": "dram",
                "shared": False,
                "ts": 1.5,
                "capacity_bytes": 0,
                "capacity_revision": 0,
                "entries": [
                    {
                        "key": {
                            "chunk_hash_hex": "abcd",
                            "model_name": "llama",
                            "kv_rank": 0x02_01_02_01,
                            "object_group_id": 3,
                            "cache_salt": "tenant",
                        },
                        "size_bytes": 9,
                        "token_ids": [5, 6],
                        "token_offset": 256,
                    }
                ],
            }
        ]
    }


def test_columns_are_little_endian_arrays_in_base64() -> None:
    rows = [
        CacheEventEntry(ObjectKey(b"aa", "llama", 1, 2, "s"), 3, [4, 5], 6),
        CacheEventEntry(ObjectKey(b"bb", "qwen", 2**64 - 1), 0, [], -1),
        CacheEventEntry(ObjectKey(b"aa", "llama", 2, 2, "s"), 3, [4, 5], 6),
    ]
    sent = orjson.loads(encode_columns([batch_of(*rows)]))["batches"][0]
    assert sent["entries"] is None
    columns = sent["columns"]

    def column(name: str, dtype: str) -> list[int]:
        return list(np.frombuffer(base64.b64decode(columns[name]), dtype).tolist())

    assert columns["scopes"] == [["llama", "s"], ["qwen", ""]]
    assert columns["hash_len"] == 2
    assert base64.b64decode(columns["chunk_hashes"]) == b"aabb"
    assert column("token_counts", "<u4") == [2, 0]
    assert column("token_offsets", "<i8") == [6, -1]
    assert column("token_ids", "<u4") == [4, 5]
    assert column("chunk", "<u4") == [0, 1, 0]
    assert column("scope", "<u2") == [0, 1, 0]
    assert column("kv_rank", "<u8") == [1, 2**64 - 1, 2]
    assert column("object_group_id", "<u4") == [2, 0, 2]
    assert column("size_bytes", "<u8") == [3, 0, 3]


def test_the_ranks_of_a_store_carry_its_tokens_once_in_columns() -> None:
    assert len(encode_columns([tp8_store()])) < len(encode_columns([batch_of(tp8_store().entries[0])])) + 500


def test_one_hash_with_other_tokens_or_another_offset_is_another_chunk() -> None:
    key = ObjectKey(b"\1", "llama", 0)
    sent = batch_of(
        CacheEventEntry(key, 0, [1], 0), CacheEventEntry(key, 0, [2], 0), CacheEventEntry(key, 0, [2], 5)
    )
    assert decode(encode_columns([sent])) == [sent]


def test_columns_cannot_carry_hashes_of_different_lengths() -> None:
    mixed = batch_of(CacheEventEntry(ObjectKey(b"a", "m", 0)), CacheEventEntry(ObjectKey(b"ab", "m", 0)))
    with pytest.raises(ValueError, match=r"one length, got \[1, 2\]"):
        encode_columns([mixed])


def test_columns_number_no_more_scopes_than_sixteen_bits_can() -> None:
    many = batch_of(*(CacheEventEntry(ObjectKey(b"a", str(i), 0)) for i in range(2**16 + 1)))
    with pytest.raises(ValueError, match="at most 65536 scopes, got 65537"):
        encode_columns([many])


def test_fields_left_out_take_their_defaults_and_unknown_ones_are_ignored() -> None:
    key = b'{"chunk_hash_hex": "01", "model_name": "m", "kv_rank": 1, "note": null}'
    head = b'"instance_id": "a", "incarnation": 1, "seq": 1, "event_type": "store", "tier": "l2"'
    value = (
        b'{"note": 1, "batches": [{%b, "backend": "s3", "note": [], "entries": [{"key": %b, "note": {}}]}]}'
        % (head, key)
    )
    entry = CacheEventEntry(ObjectKey(b"\1", "m", 1))
    assert decode(value) == [CacheEventBatch("a", 1, 1, EventType.STORE, Tier.L2, "s3", [entry])]
    assert decode(b"{}") == []


@pytest.mark.parametrize("beyond", [2**32, 2**64, 10**30, -1])
def test_a_token_id_beyond_its_width_costs_the_entry_its_tokens(beyond: int) -> None:
    envelope = orjson.loads(encode_rows([batch_of(CacheEventEntry(ObjectKey(b"a", "m", 1), 4, [1, 2], 8))]))
    envelope["batches"][0]["entries"][0]["token_ids"] = [1, beyond]
    assert decode(json.dumps(envelope).encode()) == [
        batch_of(CacheEventEntry(ObjectKey(b"a", "m", 1), 4, [], 8))
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"seq": 0},
        {"seq": 2**63},
        {"tier": "all"},
        {"event_type": "move"},
        {"backend": ""},
        {"ts": -1},
        {"shared": 1},
        {"instance_id": None},
        {"entries": None},
        {"entries": [{}]},
        {"columns": []},
    ],
)
def test_rows_outside_the_contract_are_refused(change: dict[str, Any]) -> None:
    envelope = orjson.loads(encode_rows([tp8_store()]))
    envelope["batches"][0].update(change)
    with pytest.raises(WireError):
        decode(orjson.dumps(envelope))


@pytest.mark.parametrize(
    "change",
    [
        {"hash_len": 0},
        {"hash_len": 33},
        {"hash_len": 31},
        {"chunk_hashes": "!!!!"},
        {"token_counts": base64.b64encode(b"\xff\xff\xff\xff").decode()},
        {"token_counts": ""},
        {"token_ids": ""},
        {"token_offsets": base64.b64encode(b"\xfe" + b"\xff" * 7).decode()},
        {"chunk": base64.b64encode(b"\0" * 28 + b"\1\0\0\0").decode()},
        {"chunk": base64.b64encode(b"\0\0\0").decode()},
        {"scope": base64.b64encode(b"\1\0" * 8).decode()},
        {"kv_rank": ""},
        {"size_bytes": base64.b64encode(b"\xff" * 64).decode()},
        {"scopes": []},
        {"scopes": [["a@b", ""]]},
    ],
)
def test_columns_that_lie_are_refused(change: dict[str, Any]) -> None:
    envelope = orjson.loads(encode_columns([tp8_store()]))
    envelope["batches"][0]["columns"].update(change)
    with pytest.raises(WireError):
        decode(orjson.dumps(envelope))


def test_rows_and_columns_in_one_batch_are_refused() -> None:
    envelope = orjson.loads(encode_columns([tp8_store()]))
    envelope["batches"][0]["entries"] = orjson.loads(encode_rows([tp8_store()]))["batches"][0]["entries"]
    with pytest.raises(WireError, match="not both"):
        decode(orjson.dumps(envelope))


any_json = st.recursive(st.none() | st.integers(), st.lists).map(json.dumps).map(str.encode)


@given(st.binary(max_size=200) | any_json)
def test_bytes_that_are_no_envelope_are_refused_and_nothing_else(value: bytes) -> None:
    with contextlib.suppress(WireError):
        assert decode(value) == []
