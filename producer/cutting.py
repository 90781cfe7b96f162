"""Cuts the entries of one batch into pieces that each fit a record.

A broker refuses a record beyond its limit, and what it refuses is a hole in the stream. So the emitter cuts
before it numbers: each piece takes a sequence number of its own. Sizes are upper bounds, cheap to keep, of
what `producer.wire` writes. An entry too large even on its own stays whole, for the sink to refuse, so that
its loss shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import orjson

from producer.events import CacheEventEntry, TokenIds
from producer.wire import MAX_SCOPES, Wire, same_tokens

RECORD_LIMIT: Final = 900_000
"""Bytes of a record before compression; brokers take a million unless told otherwise."""

_HEAD_BYTES: Final = 1_024
"""Above what an envelope and a batch take beside their names and entries: field names, numbers, padding."""

_ROW_BYTES: Final = 256
"""Above what a row takes beside its names, hash and tokens: field names and four integers."""

_COLUMN_ENTRY_BYTES: Final = 4 + 2 + 8 + 4 + 8
_COLUMN_CHUNK_BYTES: Final = 4 + 8


class _Meter(Protocol):
    """Keeps the size of one piece; `None` from `cost` if the entry may not join it, whatever its size."""

    def cost(self, entry: CacheEventEntry) -> int | None: ...
    def add(self, entry: CacheEventEntry) -> None: ...


def cut(
    entries: Sequence[CacheEventEntry], names: Iterable[str], wires: Iterable[Wire], limit: int = RECORD_LIMIT
) -> list[Sequence[CacheEventEntry]]:
    """Cut entries, in order, so that a batch of each piece fits `limit` bytes in each of `wires`.

    Args:
        entries: the entries of one batch; none give no piece.
        names: the texts that the batch carries once: its `instance_id` and backend.
        wires: the forms the pieces travel in; in columns, a piece has hashes of one length.
        limit: bytes of a record.
    """
    room = limit - _HEAD_BYTES - sum(map(_text_bytes, names))
    pieces = [entries] if entries else []
    for wire in wires:
        meter = _RowsMeter if wire is Wire.ROWS else _ColumnsMeter
        pieces = [shorter for piece in pieces for shorter in _cut(piece, meter, room)]
    return pieces


def _cut(
    entries: Sequence[CacheEventEntry], new_meter: type[_Meter], room: int
) -> list[Sequence[CacheEventEntry]]:
    pieces: list[Sequence[CacheEventEntry]] = []
    start, used, meter = 0, 0, new_meter()
    for i, entry in enumerate(entries):
        cost = meter.cost(entry)
        if i > start and (cost is None or used + cost > room):
            pieces.append(entries[start:i])
            start, used, meter = i, 0, new_meter()
            cost = meter.cost(entry)
        used += cost or 0
        meter.add(entry)
    pieces.append(entries[start:])
    return pieces


class _RowsMeter:
    def __init__(self) -> None:
        self._scopes: dict[tuple[str, str], int] = {}

    def cost(self, entry: CacheEventEntry) -> int:
        scope = (entry.key.model_name, entry.key.cache_salt)
        names = self._scopes.get(scope)
        if names is None:
            names = self._scopes[scope] = sum(map(_text_bytes, scope))
        tokens = entry.token_ids
        digits = len(str(int(tokens.max()))) + 1 if len(tokens) else 0
        return _ROW_BYTES + names + 2 * len(entry.key.chunk_hash) + digits * len(tokens)

    def add(self, entry: CacheEventEntry) -> None:
        pass


class _ColumnsMeter:
    def __init__(self) -> None:
        self._scopes: set[tuple[str, str]] = set()
        self._chunks: dict[tuple[bytes, int], TokenIds] = {}
        self._hash_len = 0

    def cost(self, entry: CacheEventEntry) -> int | None:
        key = entry.key
        if self._hash_len not in (0, len(key.chunk_hash)):
            return None
        raw, text = _COLUMN_ENTRY_BYTES, 0
        known = self._chunks.get((key.chunk_hash, entry.token_offset))
        if known is None or not same_tokens(known, entry.token_ids):
            raw += _COLUMN_CHUNK_BYTES + len(key.chunk_hash) + 4 * len(entry.token_ids)
        if (scope := (key.model_name, key.cache_salt)) not in self._scopes:
            if len(self._scopes) == MAX_SCOPES:
                return None
            text = sum(map(_text_bytes, scope)) + len('["",""],')
        return raw * 4 // 3 + 1 + text

    def add(self, entry: CacheEventEntry) -> None:
        key = entry.key
        self._hash_len = len(key.chunk_hash)
        self._scopes.add((key.model_name, key.cache_salt))
        self._chunks[key.chunk_hash, entry.token_offset] = entry.token_ids


def _text_bytes(text: str) -> int:
    return len(orjson.dumps(text))
