"""The wire: batches as JSON, in either of two forms, told apart by the presence of `columns`.

**rows** is LMCache's own form, an object an entry. **columns** is ours: each column is the base64 of a
little-endian array, chunks are listed once and entries refer to them, so that the ranks of one store carry
its tokens once. A batch in columns also says `"entries": null`, which LMCache refuses; without it LMCache
would take the batch for an empty one and move its cursor past it. Several batches travel in an envelope,
`{"batches": [...]}`.

Encoding is what runs inside cache servers, and is fast. `decode` is plain, for tools and tests; the processor
has a decoder of its own, which makes no object an entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec
import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from producer.events import (
    MAX_HASH_BYTES,
    NO_TOKENS,
    UNKNOWN_TOKEN_OFFSET,
    CacheEventBatch,
    CacheEventEntry,
    ObjectKey,
    TokenIds,
    check_event_type,
    check_tier,
)

MAX_SCOPES: Final = 2**16
"""Distinct `(model_name, cache_salt)` pairs that one batch in columns can number."""


class Wire(StrEnum):
    """The form a batch travels in."""

    ROWS = "rows"
    COLUMNS = "columns"


class WireError(ValueError):
    """What was read is not an envelope of batches within the contract."""


def encode_rows(batches: Iterable[CacheEventBatch]) -> bytes:
    """An envelope of batches in rows, as LMCache's coordinator takes it."""
    return envelope(map(batch_rows, batches))


def encode_columns(batches: Iterable[CacheEventBatch]) -> bytes:
    """An envelope of batches in columns.

    Raises:
        ValueError: a batch holds hashes of different lengths, or more than `MAX_SCOPES` scopes.
    """
    return envelope(map(batch_columns, batches))


def envelope(forms: Iterable[bytes]) -> bytes:
    """Join batches that are already in wire form."""
    return b'{"batches":[' + b",".join(forms) + b"]}"


def encode_batch(batch: CacheEventBatch, wire: Wire) -> bytes:
    """One batch in wire form, without an envelope."""
    return batch_rows(batch) if wire is Wire.ROWS else batch_columns(batch)


def batch_rows(batch: CacheEventBatch) -> bytes:
    """One batch in rows, without an envelope."""
    entries = [
        {
            "key": {
                "chunk_hash_hex": entry.key.chunk_hash.hex(),
                "model_name": entry.key.model_name,
                "kv_rank": entry.key.kv_rank,
                "object_group_id": entry.key.object_group_id,
                "cache_salt": entry.key.cache_salt,
            },
            "size_bytes": entry.size_bytes,
            "token_ids": entry.token_ids,
            "token_offset": entry.token_offset,
        }
        for entry in batch.entries
    ]
    return orjson.dumps(_head(batch) | {"entries": entries}, option=orjson.OPT_SERIALIZE_NUMPY)


def batch_columns(batch: CacheEventBatch) -> bytes:
    """One batch in columns, without an envelope; raises as `encode_columns`."""
    return orjson.dumps(_head(batch) | {"entries": None, "columns": _columns(batch.entries)})


def _head(batch: CacheEventBatch) -> dict[str, Any]:
    return {
        "instance_id": batch.instance_id,
        "incarnation": batch.incarnation,
        "seq": batch.seq,
        "event_type": batch.event_type.value,
        "tier": batch.tier.value,
        "backend": batch.backend,
        "shared": batch.shared,
        "ts": batch.ts,
        "capacity_bytes": batch.capacity_bytes,
        "capacity_revision": batch.capacity_revision,
    }


def _columns(entries: Sequence[CacheEventEntry]) -> dict[str, Any]:
    scopes: dict[tuple[str, str], int] = {}
    # The last chunk with this hash and offset; the same hash with other tokens is another chunk.
    seen: dict[tuple[bytes, int], int] = {}
    hashes: list[bytes] = []
    offsets: list[int] = []
    tokens: list[TokenIds] = []
    chunk: list[int] = []
    scope: list[int] = []
    for entry in entries:
        key = entry.key
        identity = (key.chunk_hash, entry.token_offset)
        index = seen.get(identity)
        if index is None or not same_tokens(tokens[index], entry.token_ids):
            index = seen[identity] = len(hashes)
            hashes.append(key.chunk_hash)
            offsets.append(entry.token_offset)
            tokens.append(entry.token_ids)
        chunk.append(index)
        scope.append(scopes.setdefault((key.model_name, key.cache_salt), len(scopes)))
    lengths = set(map(len, hashes)) or {MAX_HASH_BYTES}
    if len(lengths) > 1:
        raise ValueError(f"chunk hashes of one batch in columns must be of one length, got {sorted(lengths)}")
    if len(scopes) > MAX_SCOPES:
        raise ValueError(f"a batch in columns has at most {MAX_SCOPES} scopes, got {len(scopes)}")
    return {
        "scopes": list(scopes),
        "hash_len": lengths.pop(),
        "chunk_hashes": pybase64.b64encode_as_string(b"".join(hashes)),
        "token_counts": _base64([len(t) for t in tokens], "<u4"),
        "token_offsets": _base64(offsets, "<i8"),
        "token_ids": _base64(np.concatenate(tokens) if tokens else NO_TOKENS, "<u4"),
        "chunk": _base64(chunk, "<u4"),
        "scope": _base64(scope, "<u2"),
        "kv_rank": _base64([entry.key.kv_rank for entry in entries], "<u8"),
        "object_group_id": _base64([entry.key.object_group_id for entry in entries], "<u4"),
        "size_bytes": _base64([entry.size_bytes for entry in entries], "<u8"),
    }


def same_tokens(one: TokenIds, other: TokenIds) -> bool:
    """Whether two chunks hold the same tokens; quick where they are one array, as with ranks of a store."""
    return one is other or np.array_equal(one, other)


def _base64(values: Sequence[int] | NDArray[Any], dtype: str) -> str:
    return pybase64.b64encode_as_string(np.ascontiguousarray(values, dtype).data.cast("B"))


class _KeyForm(msgspec.Struct):
    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


class _EntryForm(msgspec.Struct):
    key: _KeyForm
    size_bytes: int = 0
    token_ids: list[int] = []
    token_offset: int = UNKNOWN_TOKEN_OFFSET


class _ColumnsForm(msgspec.Struct):
    scopes: list[tuple[str, str]]
    hash_len: int
    chunk_hashes: str
    token_counts: str
    token_offsets: str
    token_ids: str
    chunk: str
    scope: str
    kv_rank: str
    object_group_id: str
    size_bytes: str


class _BatchForm(msgspec.Struct):
    instance_id: str
    incarnation: int
    seq: int
    event_type: str
    tier: str
    backend: str
    entries: list[_EntryForm] | None = []
    columns: _ColumnsForm | None = None
    shared: bool = False
    ts: float = 0.0
    capacity_bytes: int = 0
    capacity_revision: int = 0


class _EnvelopeForm(msgspec.Struct):
    batches: list[_BatchForm] = []


_envelope_decoder = msgspec.json.Decoder(_EnvelopeForm)
_batch_decoder = msgspec.json.Decoder(_BatchForm)


def decode(value: bytes) -> list[CacheEventBatch]:
    """The batches of an envelope, in either form.

    Raises:
        WireError: not an envelope, or a batch breaks the contract.
    """
    try:
        return [_to_batch(form) for form in _envelope_decoder.decode(value).batches]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"cannot decode an envelope: {error}") from error


def decode_batch(value: bytes) -> CacheEventBatch:
    """One batch in wire form, without an envelope; raises `WireError`."""
    try:
        return _to_batch(_batch_decoder.decode(value))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"cannot decode a batch: {error}") from error


def _to_batch(form: _BatchForm) -> CacheEventBatch:
    if form.columns is None:
        if form.entries is None:
            raise ValueError("a batch needs entries or columns")
        entries = [_from_row(row) for row in form.entries]
    elif form.entries:
        raise ValueError("a batch has entries or columns, not both")
    else:
        entries = _from_columns(form.columns)
    return CacheEventBatch(
        instance_id=form.instance_id,
        incarnation=form.incarnation,
        seq=form.seq,
        event_type=check_event_type(form.event_type),
        tier=check_tier(form.tier),
        backend=form.backend,
        entries=entries,
        shared=form.shared,
        ts=form.ts,
        capacity_bytes=form.capacity_bytes,
        capacity_revision=form.capacity_revision,
    )


def _from_row(row: _EntryForm) -> CacheEventEntry:
    key = ObjectKey(
        chunk_hash=bytes.fromhex(row.key.chunk_hash_hex),
        model_name=row.key.model_name,
        kv_rank=row.key.kv_rank,
        object_group_id=row.key.object_group_id,
        cache_salt=row.key.cache_salt,
    )
    try:
        tokens = np.array(row.token_ids, np.uint32)
    except OverflowError:
        tokens = NO_TOKENS  # An id beyond the width costs the entry its tokens, not the record.
    return CacheEventEntry(key, row.size_bytes, tokens, row.token_offset)


def _from_columns(form: _ColumnsForm) -> list[CacheEventEntry]:
    if not 1 <= form.hash_len <= MAX_HASH_BYTES:
        raise ValueError(f"hash_len must be 1 to {MAX_HASH_BYTES}, got {form.hash_len}")
    digests = pybase64.b64decode(form.chunk_hashes, validate=True)
    chunks, rest = divmod(len(digests), form.hash_len)
    if rest:
        raise ValueError(f"chunk_hashes has {len(digests)} bytes, no multiple of hash_len {form.hash_len}")
    counts = _array("token_counts", form.token_counts, "<u4", chunks)
    offsets = _array("token_offsets", form.token_offsets, "<i8", chunks).tolist()
    ids = _array("token_ids", form.token_ids, "<u4", int(counts.sum(dtype=np.int64)))
    ends = itertools.accumulate(counts.tolist())
    tokens = [ids[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]
    chunk = _array("chunk", form.chunk, "<u4")
    n = len(chunk)
    scope = _array("scope", form.scope, "<u2", n)
    if n and (chunk.max() >= chunks or scope.max() >= len(form.scopes)):
        raise ValueError("chunk and scope must point into the batch's chunks and scopes")
    hashes = [digests[i : i + form.hash_len] for i in range(0, len(digests), form.hash_len)]
    rows = zip(
        chunk.tolist(),
        scope.tolist(),
        _array("kv_rank", form.kv_rank, "<u8", n).tolist(),
        _array("object_group_id", form.object_group_id, "<u4", n).tolist(),
        _array("size_bytes", form.size_bytes, "<u8", n).tolist(),
        strict=True,
    )
    return [
        CacheEventEntry(
            ObjectKey(hashes[c], form.scopes[s][0], kv_rank, group, form.scopes[s][1]),
            size,
            tokens[c],
            offsets[c],
        )
        for c, s, kv_rank, group, size in rows
    ]


def _array(name: str, text: str, dtype: str, length: int | None = None) -> NDArray[Any]:
    raw = pybase64.b64decode(text, validate=True)
    count, rest = divmod(len(raw), np.dtype(dtype).itemsize)
    if rest or (length is not None and count != length):
        raise ValueError(
            f"{name} must hold {'whole' if length is None else length} items, got {len(raw)} bytes"
        )
    return np.frombuffer(raw, dtype)
