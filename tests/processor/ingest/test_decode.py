"""The decoder: what it makes of valid records, of broken ones, and of anything else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pybase64
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.batch import EventBatch
from processor.ingest import pieces
from processor.ingest.decode import DecodeError, Decoder
from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier
from producer.wire import decode as plain_decode
from producer.wire import encode_columns, encode_rows
from tests.producer.strategies import batches

CHUNK_SIZE = 4
NOW = 1_700_000_000.5
WIDTHS = {
    "chunk_hashes": "uint8",
    "hash_lens": "uint8",
    "token_starts": "int64",
    "tokens": "uint32",
    "token_offsets": "int64",
    "chunk": "uint32",
    "scope": "uint32",
    "kv_rank": "uint64",
    "object_group_id": "uint32",
    "size_bytes": "int64",
}
ABSENT = object()
untimed = settings(deadline=None)  # the first call compiles the kernels


def decode(value: bytes) -> list[EventBatch]:
    return Decoder(CHUNK_SIZE).decode(value, record_time=NOW)


def as_contract(batch: EventBatch) -> CacheEventBatch:
    """The batch as an object an entry, to be compared with what the plain decoder gives."""
    columns = batch.columns
    entries = []
    for i in range(len(columns)):
        chunk = int(columns.chunk[i])
        model, salt = columns.scopes[columns.scope[i]]
        digest = columns.chunk_hashes[chunk].tobytes()
        length = int(columns.hash_lens[chunk])
        assert not any(digest[length:]), "a digest is zero beyond its length"
        key = ObjectKey(
            digest[:length], model, int(columns.kv_rank[i]), int(columns.object_group_id[i]), salt
        )
        start, end = columns.token_starts[chunk : chunk + 2]
        entries.append(
            CacheEventEntry(
                key, int(columns.size_bytes[i]), columns.tokens[start:end], int(columns.token_offsets[chunk])
            )
        )
    return CacheEventBatch(
        batch.instance_id,
        batch.incarnation,
        batch.seq,
        batch.event_type,
        batch.tier,
        batch.backend,
        entries,
        batch.shared,
        batch.ts,
        batch.capacity_bytes,
        batch.capacity_revision,
    )


def row_batch(**changes: Any) -> dict[str, Any]:
    batch: dict[str, Any] = {
        "instance_id": "server-1",
        "incarnation": 7,
        "seq": 1,
        "event_type": "store",
        "tier": "l1",
        "backend": "dram",
        "entries": [row_entry()],
    }
    batch.update(changes)
    return {name: value for name, value in batch.items() if value is not ABSENT}


def row_entry(key: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    parts = {"chunk_hash_hex": "00ff", "model_name": "m", "kv_rank": 1 << 24} | (key or {})
    entry = {"key": {name: value for name, value in parts.items() if value is not ABSENT}} | changes
    return {name: value for name, value in entry.items() if value is not ABSENT}


def column_batch(**changes: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "scopes": [["m", "salt"]],
        "hash_len": 2,
        "chunk_hashes": b64([0, 255, 1, 2], "u1"),
        "token_counts": b64([3, 1], "<u4"),
        "token_offsets": b64([-1, 8], "<i8"),
        "token_ids": b64([1, 2, 3, 9], "<u4"),
        "chunk": b64([0, 1, 1], "<u4"),
        "scope": b64([0, 0, 0], "<u2"),
        "kv_rank": b64([0, 1 << 24, 2**64 - 1], "<u8"),
        "object_group_id": b64([0, 1, 2**32 - 1], "<u4"),
        "size_bytes": b64([0, 1, 2**63 - 1], "<u8"),
    }
    columns.update(changes)
    columns = {name: value for name, value in columns.items() if value is not ABSENT}
    return row_batch(entries=None) | {"columns": columns}


def b64(values: list[int], dtype: str) -> str:
    return pybase64.b64encode_as_string(np.array(values, dtype).tobytes())


def envelope(*given_batches: dict[str, Any]) -> bytes:
    return json.dumps({"batches": given_batches}).encode()


@untimed
@given(st.lists(batches(), max_size=4), st.sampled_from([encode_rows, encode_columns]))
def test_it_reads_either_form_as_the_plain_decoder_does(
    written: list[CacheEventBatch], encode: Callable[[list[CacheEventBatch]], bytes]
) -> None:
    value = encode(written)
    assert [as_contract(batch) for batch in decode(value)] == plain_decode(value)


@untimed
@given(st.lists(batches(), max_size=3), st.sampled_from([1, 3, None]), st.booleans())
def test_white_space_and_escapes_do_not_matter(
    written: list[CacheEventBatch], indent: int | None, escape: bool
) -> None:
    value = json.dumps(json.loads(encode_rows(written)), indent=indent, ensure_ascii=escape).encode()
    assert [as_contract(batch) for batch in decode(value)] == plain_decode(value)


@untimed
@given(
    written=st.lists(batches(), min_size=1, max_size=6), form=st.sampled_from([encode_rows, encode_columns])
)
def test_a_document_in_pieces_reads_as_one_in_whole(
    written: list[CacheEventBatch], form: Callable[[list[CacheEventBatch]], bytes]
) -> None:
    value = form(written)
    whole = [as_contract(batch) for batch in decode(value)]
    for size in (1, 200, 700):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pieces, "PIECE", size)
            try:
                assert [as_contract(batch) for batch in decode(value)] == whole
            except DecodeError as error:
                assert "takes more than" in error.reason, "only what is too long to be cut may be refused"


def test_a_large_request_is_read_whole() -> None:
    entries = [
        CacheEventEntry(ObjectKey(i.to_bytes(32, "big"), f"m{i % 3}", i), i, [i, i + 1], i)
        for i in range(5000)
    ]
    small = CacheEventBatch("server-1", 1, 1, EventType.ACCESS, Tier.L1, "")
    large = CacheEventBatch("server-1", 1, 2, EventType.STORE, Tier.L2, "fs", entries, ts=3.0)
    for value in (encode_rows([small, large, small]), encode_columns([small, large, small])):
        assert [as_contract(batch) for batch in decode(value)] == [small, large, small]


def test_absent_fields_take_their_defaults() -> None:
    (batch,) = decode(envelope(row_batch(unheard_of={"token_ids": [1.5]})))
    assert as_contract(batch) == CacheEventBatch(
        "server-1",
        7,
        1,
        EventType.STORE,
        Tier.L1,
        "dram",
        [CacheEventEntry(ObjectKey(b"\0\xff", "m", 1 << 24))],
    )
    (without,) = decode(envelope(row_batch(entries=ABSENT)))
    assert len(without.columns) == 0
    assert decode(b"{}") == decode(b' {"batches": []} ') == []


def test_the_record_s_time_stands_in_where_the_emitter_gave_none() -> None:
    first, second = decode(envelope(row_batch(), row_batch(ts=12.5)))
    assert (first.ts, first.event_time) == (0.0, NOW)
    assert (second.ts, second.event_time) == (12.5, 12.5)


def test_columns_keep_the_shape_they_came_in() -> None:
    (batch,) = decode(envelope(column_batch()))
    columns = batch.columns
    assert columns.scopes == [("m", "salt")]
    assert columns.token_starts.tolist() == [0, 3, 4]
    assert columns.chunk.tolist() == [0, 1, 1]
    assert columns.kv_rank.tolist() == [0, 1 << 24, 2**64 - 1]
    dtypes = {name: getattr(columns, name).dtype.name for name in WIDTHS}
    assert dtypes == WIDTHS


def test_the_tokens_of_a_batch_are_not_copied_entry_by_entry_but_survive_a_member_given_twice() -> None:
    entry = json.dumps(row_entry(token_ids=[1, 2]))
    twice = entry[:-1] + ', "token_ids": [7]}'
    value = envelope(row_batch(entries=["A", "B", "A"])).replace(b'"A"', entry.encode())
    (batch,) = decode(value.replace(b'"B"', twice.encode()))
    assert batch.columns.tokens.tolist() == [1, 2, 7, 1, 2]
    assert batch.columns.token_starts.tolist() == [0, 2, 3, 5]


def test_names_spelt_with_escapes_are_the_same_names() -> None:
    value = envelope(row_batch(entries=[row_entry(token_ids=[5, 6])]))
    (batch,) = decode(value.replace(b'"token_ids"', b'"token\\u005fids"').replace(b'"seq"', b'"s\\u0065q"'))
    assert batch.columns.tokens.tolist() == [5, 6]
    with pytest.raises(DecodeError):
        decode(value.replace(b'"token_ids": [5, 6]', b'"token\\u005fids": -1, "x": {"token_ids": [5, 6]}'))


@pytest.mark.parametrize("ids", [[2**32], [1, 10**30, 2], list(range(16 * CHUNK_SIZE + 1))])
def test_tokens_beyond_the_limits_cost_the_entry_its_tokens_and_are_counted(ids: list[int]) -> None:
    entries = [
        row_entry(token_ids=[1]),
        row_entry(token_ids=ids, token_offset=4),
        row_entry(token_ids=[2**32 - 1]),
    ]
    (batch,) = decode(envelope(row_batch(entries=entries)))
    assert batch.columns.tokens.tolist() == [1, 2**32 - 1]
    assert batch.columns.token_starts.tolist() == [0, 1, 1, 2]
    assert batch.columns.token_offsets.tolist() == [-1, 4, -1]
    assert batch.columns.tokens_dropped == 1


def test_content_too_long_is_dropped_from_columns_as_well() -> None:
    ids = list(range(16 * CHUNK_SIZE + 1))
    changes = {"token_counts": b64([len(ids), 1], "<u4"), "token_ids": b64([*ids, 77], "<u4")}
    (batch,) = decode(envelope(column_batch(**changes)))
    assert batch.columns.tokens.tolist() == [77]
    assert batch.columns.token_starts.tolist() == [0, 0, 1]
    assert batch.columns.tokens_dropped == 1


ROW = ("batches", 0)
ENTRY = (*ROW, "entries", 0)


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"instance_id": ""}, (*ROW, "instance_id")),
        ({"instance_id": ABSENT}, (*ROW, "instance_id")),
        ({"instance_id": 5}, (*ROW, "instance_id")),
        ({"incarnation": -1}, (*ROW, "incarnation")),
        ({"incarnation": 2**63}, (*ROW, "incarnation")),
        ({"seq": 0}, (*ROW, "seq")),
        ({"seq": 2**64}, (*ROW, "seq")),
        ({"seq": 1.5}, (*ROW, "seq")),
        ({"seq": True}, (*ROW, "seq")),
        ({"event_type": "evict"}, (*ROW, "event_type")),
        ({"event_type": "config"}, (*ROW, "entries")),
        ({"tier": "all"}, (*ROW, "tier")),
        ({"backend": ""}, (*ROW, "backend")),
        ({"shared": 1}, (*ROW, "shared")),
        ({"ts": -0.5}, (*ROW, "ts")),
        ({"ts": None}, (*ROW, "ts")),
        ({"ts": 10**400}, (*ROW, "ts")),
        ({"capacity_bytes": -1}, (*ROW, "capacity_bytes")),
        ({"capacity_revision": 2**63}, (*ROW, "capacity_revision")),
        ({"entries": None}, (*ROW, "entries")),
        ({"entries": {}}, (*ROW, "entries")),
        ({"entries": [7]}, ENTRY),
        ({"entries": [{}]}, (*ENTRY, "key")),
    ],
)
def test_a_batch_outside_the_contract_is_refused_with_its_place(
    changes: dict[str, Any], loc: tuple[Any, ...]
) -> None:
    assert_refused(envelope(row_batch(**changes)), loc)


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"key": {"chunk_hash_hex": ""}}, ("key", "chunk_hash_hex")),
        ({"key": {"chunk_hash_hex": "abc"}}, ("key", "chunk_hash_hex")),
        ({"key": {"chunk_hash_hex": "zz"}}, ("key", "chunk_hash_hex")),
        ({"key": {"chunk_hash_hex": "é0"}}, ("key", "chunk_hash_hex")),
        ({"key": {"chunk_hash_hex": "00" * 33}}, ("key", "chunk_hash_hex")),
        ({"key": {"model_name": "a@b"}}, ("key", "model_name")),
        ({"key": {"model_name": ABSENT}}, ("key", "model_name")),
        ({"key": {"cache_salt": "a/b"}}, ("key", "cache_salt")),
        ({"key": {"cache_salt": "s" * 129}}, ("key", "cache_salt")),
        ({"key": {"kv_rank": -1}}, ("key", "kv_rank")),
        ({"key": {"kv_rank": 2**64}}, ("key", "kv_rank")),
        ({"key": {"kv_rank": "A" * 200}}, ("key", "kv_rank")),
        ({"key": {"object_group_id": 2**32}}, ("key", "object_group_id")),
        ({"size_bytes": -1}, ("size_bytes",)),
        ({"size_bytes": 2**63}, ("size_bytes",)),
        ({"token_offset": -2}, ("token_offset",)),
        ({"token_ids": None}, ("token_ids",)),
        ({"token_ids": "A" * 200}, ("token_ids",)),
        ({"token_ids": 5}, ("token_ids",)),
        ({"token_ids": -1}, ("token_ids",)),
        ({"token_ids": [-1]}, ("token_ids",)),
        ({"token_ids": [1, 2.0]}, ("token_ids",)),
        ({"token_ids": [1, "2"]}, ("token_ids",)),
        ({"token_ids": [True]}, ("token_ids",)),
        ({"token_ids": [[1]]}, ("token_ids",)),
    ],
)
def test_an_entry_outside_the_contract_is_refused_with_its_place(
    changes: dict[str, Any], loc: tuple[Any, ...]
) -> None:
    entries = [row_entry(token_ids=[1]), row_entry(**changes), row_entry()]
    assert_refused(envelope(row_batch(seq=2), row_batch(entries=entries)), ("batches", 1, "entries", 1, *loc))


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"scopes": [["m"]]}, ("scopes", 0)),
        ({"scopes": [["m", "a@b"]]}, ("scopes", 0)),
        ({"scopes": []}, ("scope", 0)),
        ({"hash_len": 0}, ("hash_len",)),
        ({"hash_len": 33}, ("hash_len",)),
        ({"hash_len": 3}, ("chunk_hashes",)),
        ({"chunk_hashes": "****"}, ("chunk_hashes",)),
        ({"chunk_hashes": [1, 2]}, ("chunk_hashes",)),
        ({"chunk_hashes": -1}, ("chunk_hashes",)),
        ({"chunk_hashes": 5}, ("chunk_hashes",)),
        ({"chunk_hashes": ABSENT}, ("chunk_hashes",)),
        ({"token_counts": b64([3], "<u4")}, ("token_counts",)),
        ({"token_counts": b64([3, 2], "<u4")}, ("token_ids",)),
        ({"token_counts": b64([2**32 - 1, 5], "<u4")}, ("token_ids",)),
        ({"token_offsets": b64([-2, 0], "<i8")}, ("token_offsets", 0)),
        ({"token_ids": [1, 2, 3, 9]}, ("token_ids",)),
        ({"token_ids": pybase64.b64encode_as_string(b"123")}, ("token_ids",)),
        ({"chunk": b64([0, 1, 2], "<u4")}, ("chunk", 2)),
        ({"scope": b64([0, 0, 1], "<u2")}, ("scope", 2)),
        ({"scope": b64([0], "<u2")}, ("scope",)),
        ({"kv_rank": b64([0, 1], "<u8")}, ("kv_rank",)),
        ({"kv_rank": "é"}, ("kv_rank",)),
        ({"object_group_id": ""}, ("object_group_id",)),
        ({"size_bytes": b64([0, 2**63, 0], "<u8")}, ("size_bytes", 1)),
    ],
)
def test_columns_that_lie_are_refused_with_their_place(changes: dict[str, Any], loc: tuple[Any, ...]) -> None:
    assert_refused(envelope(row_batch(), column_batch(**changes)), ("batches", 1, "columns", *loc))


@pytest.mark.parametrize("entries", [[], [row_entry()], ABSENT])
def test_a_batch_has_one_form_only(entries: Any) -> None:
    both = column_batch() | {"entries": entries}
    assert_refused(
        envelope({name: value for name, value in both.items() if value is not ABSENT}), (*ROW, "entries")
    )


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b"{",
        b'{"batches": [}',
        b'{"batches": [1,]}',
        b'{"batches": []} x',
        b'{"batches": [], "x": NaN}',
        b'{"batches": {}}',
        b'{"batches": [{"instance_id": "\\ud800"}]}',
        b'{"batches": [{"instance_id": "\xff"}]}',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 1_000_000,
        b'{"batches": ' + b'{"a":' * 100_000,
        b'{"batches":[{"entries":[{"token_ids":[',
        b'{"token_ids":[01]}',
        b'{"token_ids":' + b'"' + b"A" * 200,
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_envelope_is_refused(value: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(value)


@untimed
@given(st.binary(max_size=200))
def test_any_bytes_at_all_give_batches_or_a_decode_error(value: bytes) -> None:
    survives(value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@untimed
@given(anything)
def test_any_json_at_all_gives_batches_or_a_decode_error(value: Any) -> None:
    survives(json.dumps(value).encode())
    survives(json.dumps({"batches": [value]}).encode())


@untimed
@given(st.data())
def test_a_valid_record_with_one_thing_wrong_is_read_as_the_plain_decoder_reads_it_or_refused(
    data: st.DataObject,
) -> None:
    written = data.draw(st.lists(batches(), min_size=1, max_size=2))
    document = json.loads(data.draw(st.sampled_from([encode_rows, encode_columns]))(written))
    spoil(document, data)
    value = json.dumps(document).encode()
    read = survives(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", 64)
        survives(value)
    if read is not None:
        assert [as_contract(batch) for batch in read] == plain_decode(value)


@untimed
@given(st.data())
def test_a_record_cut_or_with_bytes_changed_never_escapes_as_another_error(data: st.DataObject) -> None:
    value = bytearray(data.draw(st.sampled_from([encode_rows, encode_columns]))([data.draw(batches())]))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(
            st.sampled_from(b'"\\[]{},:-0 5e.\x00\xff')
        )
    survives(bytes(value))
    survives(bytes(value[: data.draw(st.integers(0, len(value)))]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", 64)
        survives(bytes(value))


def test_a_hundred_megabytes_of_anything_are_dealt_with_in_seconds() -> None:
    size = 100_000_000
    start = time.thread_time()
    for value in (
        b"[" * size,
        b'"' * size,
        b'{"batches":[' + b"{}," * (size // 3),
        b'{"batches":[{"entries":[{"token_ids":[' + b"1," * (size // 2),
        b'{"batches":[{"columns":{"token_ids":"' + b"A" * size + b'"}}]}',
    ):
        with pytest.raises(DecodeError):
            decode(value)
    assert time.thread_time() - start < 30, "seconds of this thread, however busy the machine is"


def test_other_threads_run_while_large_requests_are_decoded() -> None:
    entries = [
        CacheEventEntry(ObjectKey(i.to_bytes(32, "big"), "m", i), i, range(64), i) for i in range(20_000)
    ]
    one = [CacheEventBatch("server-1", 1, 1, EventType.STORE, Tier.L1, "dram", entries)]
    for value in (encode_rows(one), encode_columns(one)):
        calls = 10
        done = threading.Event()

        def run(value: bytes = value, done: threading.Event = done, calls: int = calls) -> None:
            for _ in range(calls):
                decode(value)
            done.set()

        thread = threading.Thread(target=run)
        thread.start()
        turns = 0
        while not done.is_set():
            turns += 1
            time.sleep(0)
        thread.join()
        assert turns > 10 * calls, "a decode call holds the interpreter in one piece"


def survives(value: bytes) -> list[EventBatch] | None:
    try:
        return decode(value)
    except DecodeError as error:
        assert str(error)
        return None


def assert_refused(value: bytes, loc: tuple[Any, ...]) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(value)
    assert caught.value.loc == loc
    assert caught.value.reason
    with pytest.MonkeyPatch.context() as patch:
        # In pieces the same fault is found, if not always at the same place.
        patch.setattr(pieces, "PIECE", 1)
        with pytest.raises(DecodeError):
            decode(value)


def spoil(document: Any, data: st.DataObject) -> None:
    """Change one value somewhere in a document."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for name, inner in items:
            places.append((node, name))
            walk(inner)

    walk(document)
    node, name = data.draw(st.sampled_from(places))
    node[name] = data.draw(
        st.sampled_from(
            [
                None,
                -1,
                -2,
                0,
                1,
                2**32,
                2**63,
                2**64,
                10**40,
                0.5,
                "",
                "A",
                "QUJD",
                "@",
                "A" * 200,
                [],
                [1],
                [-1],
                {},
                True,
            ]
        )
        | anything
    )
