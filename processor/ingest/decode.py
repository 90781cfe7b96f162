"""From the bytes of a record to batches as columns, for both forms of the wire.

Three steps: a compiled pass without the GIL lifts token ids and long base64 strings out of the text; what is
left, a fraction of it, goes through msgspec into typed structs, in pieces if it is large; their fields
become columns, a list at a time. No single call holds the GIL for more than about a millisecond, whatever a
client sends.

Whatever the bytes are, the outcome is batches within the contract of `producer.events`, or a `DecodeError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from processor.batch import HASH_BYTES, BatchColumns, EventBatch
from processor.ingest import decode_kernels as kernels
from processor.ingest import pieces
from processor.ingest.lifting import Lift
from processor.ingest.wire_forms import (
    BATCH,
    BATCHES,
    ENTRIES,
    ENVELOPE,
    SCOPES,
    BatchForm,
    ColumnsForm,
    DecodeError,
    EntryForm,
    Loc,
    read,
)
from producer.events import (
    MAX_CONTENT_CHUNKS,
    MAX_INT,
    MAX_KV_RANK,
    ContractError,
    EventType,
    check_backend,
    check_cache_salt,
    check_instance_id,
    check_model_name,
)

__all__ = ["DecodeError", "Decoder"]

NOTHING = BatchColumns()
"""What a batch without entries has; shared, as arrays of a batch are read-only."""

Runs = Iterable[tuple[int, list[EntryForm]]]
"""Entries of a batch in order, each list with the index of its first."""


class Decoder:
    """Decodes records and request bodies. May be used from several threads.

    Args:
        chunk_size: tokens of the fleet's chunks; content longer than 16 of them counts as unknown.
    """

    def __init__(self, chunk_size: int) -> None:
        self._max_tokens = MAX_CONTENT_CHUNKS * chunk_size

    def decode(self, value: bytes, *, record_time: float) -> list[EventBatch]:
        """The batches of an envelope.

        Args:
            value: JSON in UTF-8, or anything.
            record_time: seconds since the epoch, for batches that do not say when they were made.

        Raises:
            DecodeError: it is no envelope, or a batch breaks the contract.
        """
        lifted = Lift(value, self._max_tokens)
        return [self._batch(*found, lifted, record_time) for found in _batches(lifted.document)]

    def _batch(self, loc: Loc, form: BatchForm, runs: Runs, lifted: Lift, record_time: float) -> EventBatch:
        try:
            check_instance_id(form.instance_id)
            check_backend(form.backend, form.event_type)
        except ContractError as error:
            raise DecodeError((*loc, error.field), str(error)) from None
        if form.columns is None:
            if form.entries is None:
                raise DecodeError((*loc, "entries"), "may only be null beside columns")
            columns = _from_rows(runs, lifted, loc)
        else:
            if form.entries is not None:
                raise DecodeError((*loc, "entries"), "must be null beside columns")
            columns = _from_columns(form.columns, lifted, self._max_tokens, (*loc, "columns"))
        if len(columns) and form.event_type is EventType.CONFIG:
            raise DecodeError((*loc, "entries"), "must be empty in a config batch")
        return EventBatch(
            instance_id=form.instance_id,
            incarnation=form.incarnation,
            seq=form.seq,
            event_type=form.event_type,
            tier=form.tier,
            backend=form.backend,
            shared=form.shared,
            ts=form.ts,
            event_time=form.ts or record_time,
            generation=form.generation,
            capacity_bytes=form.capacity_bytes,
            capacity_revision=form.capacity_revision,
            columns=columns,
        )


def _batches(document: pieces.Document) -> Iterator[tuple[Loc, BatchForm, Runs]]:
    """The batches of a document with their entries, in pieces if it is large."""
    if len(document) <= pieces.PIECE:
        for index, form in enumerate(read(ENVELOPE, document).batches):
            yield ("batches", index), form, [(0, form.entries or [])]
        return
    span = pieces.members(document, pieces.root(document), ["batches"], ()).get("batches")
    if span is None:
        return
    if not pieces.is_array(document, span):
        raise DecodeError(("batches",), "must be an array")
    for base, items in pieces.runs(document, span, ("batches",)):
        if items[0][1] - items[0][0] > pieces.PIECE:
            loc = ("batches", base)
            form, runs = _large_batch(document, items[0], loc)
            yield loc, form, runs
            continue
        for offset, form in enumerate(read(BATCHES, pieces.text_of(document, items), ("batches",), base)):
            yield ("batches", base + offset), form, [(0, form.entries or [])]


def _large_batch(document: pieces.Document, span: pieces.Span, loc: Loc) -> tuple[BatchForm, Runs]:
    """A batch by its members; its entries, or the scopes of its columns, apart from the rest."""
    if not pieces.is_object(document, span):
        raise DecodeError(loc, "must be an object")
    parts = pieces.members(document, span, BatchForm.__struct_fields__, loc)
    entries, columns = parts.get("entries"), parts.get("columns")
    stand_ins: dict[str, bytes] = {}
    scopes: list[tuple[str, str]] | None = None
    if entries is not None and pieces.is_array(document, entries):
        stand_ins["entries"] = b"[]"
    if columns is not None and pieces.is_object(document, columns):
        where = (*loc, "columns")
        column_parts = pieces.members(document, columns, ColumnsForm.__struct_fields__, where)
        listed = column_parts.get("scopes")
        if listed is not None and pieces.is_array(document, listed):
            scopes = _scopes(document, listed, (*where, "scopes"))
            stand_ins["columns"] = _object(document, column_parts, {"scopes": b"[]"}, where)
    form = read(BATCH, _object(document, parts, stand_ins, loc), loc)
    if scopes is not None and form.columns is not None:
        form.columns.scopes = scopes
    runs: Runs = [(0, form.entries or [])]
    if "entries" in stand_ins and entries is not None:
        runs = _entry_runs(document, entries, (*loc, "entries"))
    return form, runs


def _object(
    document: pieces.Document, parts: dict[str, pieces.Span], stand_ins: dict[str, bytes], loc: Loc
) -> bytes:
    """An object of the members in `parts`, some with other values."""
    texts: list[bytes] = []
    for name, (start, end) in parts.items():
        value = stand_ins.get(name)
        if value is None:
            if end - start > pieces.PIECE:
                raise DecodeError((*loc, name), f"takes more than {pieces.PIECE} bytes")
            value = document[start:end].tobytes()
        texts.append(b'"' + name.encode() + b'":' + value)
    return b"{" + b",".join(texts) + b"}"


def _entry_runs(document: pieces.Document, span: pieces.Span, loc: Loc) -> Runs:
    for base, items in pieces.runs(document, span, loc):
        _check_item(items, (*loc, base))
        yield base, read(ENTRIES, pieces.text_of(document, items), loc, base)


def _scopes(document: pieces.Document, span: pieces.Span, loc: Loc) -> list[tuple[str, str]]:
    scopes: list[tuple[str, str]] = []
    for base, items in pieces.runs(document, span, loc):
        _check_item(items, (*loc, base))
        scopes += read(SCOPES, pieces.text_of(document, items), loc, base)
    return scopes


def _check_item(items: list[pieces.Span], loc: Loc) -> None:
    if items[0][1] - items[0][0] > pieces.PIECE:
        raise DecodeError(loc, f"takes more than {pieces.PIECE} bytes")


def _from_rows(runs: Runs, lifted: Lift, loc: Loc) -> BatchColumns:
    """The columns of a batch in rows; each entry is a chunk of its own."""
    scopes: dict[tuple[str, str], int] = {}
    parts = [_row_arrays(entries, scopes, (*loc, "entries"), base) for base, entries in runs if entries]
    if not parts:
        return NOTHING
    columns = parts[0] if len(parts) == 1 else [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    digests, lengths, scope, kv_rank, group, size, offset, numbers = columns
    starts, tokens, dropped = lifted.tokens(numbers, loc)
    return BatchColumns(
        scopes=list(scopes),
        chunk_hashes=digests,
        hash_lens=lengths,
        token_starts=starts,
        tokens=tokens,
        token_offsets=offset,
        chunk=np.arange(len(numbers), dtype=np.uint32),
        scope=scope,
        kv_rank=kv_rank,
        object_group_id=group,
        size_bytes=size,
        tokens_dropped=dropped,
    )


def _row_arrays(
    entries: list[EntryForm], scopes: dict[tuple[str, str], int], loc: Loc, base: int
) -> tuple[NDArray[Any], ...]:
    n = len(entries)
    keys = [entry.key for entry in entries]
    pairs = [(key.model_name, key.cache_salt) for key in keys]
    for pair in dict.fromkeys(pairs):
        if pair not in scopes:
            try:
                _check_scope(pair)
            except ContractError as error:
                where = (*loc, base + pairs.index(pair), "key", error.field)
                raise DecodeError(where, str(error)) from None
            scopes[pair] = len(scopes)
    if len(scopes) == 1:
        scope = np.zeros(n, np.uint32)
    else:
        scope = np.array([scopes[pair] for pair in pairs], np.uint32)
    digests, lengths = _digests([key.chunk_hash_hex for key in keys], loc, base)
    ranks = [key.kv_rank for key in keys]
    try:
        kv_rank = np.array(ranks, np.uint64)
    except OverflowError:
        index = next(i for i, rank in enumerate(ranks) if rank > MAX_KV_RANK)
        where = (*loc, base + index, "key", "kv_rank")
        raise DecodeError(where, f"must be an integer from 0 to {MAX_KV_RANK}") from None
    return (
        digests,
        lengths,
        scope,
        kv_rank,
        np.array([key.object_group_id for key in keys], np.uint32),
        np.array([entry.size_bytes for entry in entries], np.int64),
        np.array([entry.token_offset for entry in entries], np.int64),
        np.array([entry.token_ids for entry in entries], np.int64),
    )


def _digests(texts: list[str], loc: Loc, base: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    joined = "".join(texts)
    bad = -1
    digests = np.zeros((len(texts), HASH_BYTES), np.uint8)
    lengths = np.empty(len(texts), np.uint8)
    if joined.isascii():
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        bad = kernels.unhex(np.frombuffer(joined.encode(), np.uint8), sizes, digests, lengths)
    else:
        bad = next(i for i, text in enumerate(texts) if not text.isascii())
    if bad >= 0:
        where = (*loc, base + bad, "key", "chunk_hash_hex")
        raise DecodeError(where, f"must be 1 to {HASH_BYTES} bytes in hexadecimal")
    return digests, lengths


def _check_scope(pair: tuple[str, str]) -> None:
    check_model_name(pair[0])
    check_cache_salt(pair[1])


def _from_columns(form: ColumnsForm, lifted: Lift, max_tokens: int, loc: Loc) -> BatchColumns:
    """The columns of a batch that came as such, every length and every index checked."""
    for index, pair in enumerate(form.scopes):
        try:
            _check_scope(pair)
        except ContractError as error:
            raise DecodeError((*loc, "scopes", index), str(error)) from None

    def column(name: str, dtype: str, length: int | None = None) -> NDArray[Any]:
        raw = lifted.blob(getattr(form, name), (*loc, name))
        count, rest = divmod(len(raw), np.dtype(dtype).itemsize)
        if rest or length not in (None, count):
            wanted = f"{length} items" if length is not None else "whole items"
            raise DecodeError((*loc, name), f"must hold {wanted} of {dtype}, got {len(raw)} bytes")
        return raw.view(dtype)

    def check(name: str, bad: NDArray[np.bool_], reason: str) -> None:
        if bad.any():
            raise DecodeError((*loc, name, int(bad.argmax())), reason)

    packed = column("chunk_hashes", "u1")
    chunks, rest = divmod(len(packed), form.hash_len)
    if rest:
        raise DecodeError(
            (*loc, "chunk_hashes"), f"must be a multiple of {form.hash_len} bytes, got {len(packed)}"
        )
    digests = packed.reshape(chunks, form.hash_len)
    if form.hash_len != HASH_BYTES:
        digests = np.pad(digests, ((0, 0), (0, HASH_BYTES - form.hash_len)))
    counts = column("token_counts", "<u4", chunks).astype(np.int64)
    offsets = column("token_offsets", "<i8", chunks)
    check("token_offsets", offsets < -1, "must be an integer >= -1")
    tokens = column("token_ids", "<u4", int(counts.sum()))
    too_long = counts > max_tokens
    dropped = int(np.count_nonzero(too_long))
    if dropped:
        tokens = tokens[np.repeat(~too_long, counts)]
        counts[too_long] = 0
    starts = np.zeros(chunks + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    chunk = column("chunk", "<u4")
    n = len(chunk)
    check("chunk", chunk >= chunks, f"must be less than {chunks}, the number of chunks")
    scope = column("scope", "<u2", n)
    check("scope", scope >= len(form.scopes), f"must be less than {len(form.scopes)}, the number of scopes")
    size = column("size_bytes", "<u8", n)
    check("size_bytes", size > MAX_INT, f"must be an integer from 0 to {MAX_INT}")
    return BatchColumns(
        scopes=form.scopes,
        chunk_hashes=digests,
        hash_lens=np.full(chunks, form.hash_len, np.uint8),
        token_starts=starts,
        tokens=tokens,
        token_offsets=offsets,
        chunk=chunk,
        scope=scope.astype(np.uint32),
        kv_rank=column("kv_rank", "<u8", n),
        object_group_id=column("object_group_id", "<u4", n),
        size_bytes=size.view(np.int64),
        tokens_dropped=dropped,
    )
