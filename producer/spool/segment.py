"""One segment of a spool: a file of frames, each a record with its length, its index and a checksum.

The checksum covers the whole frame, so that what a crash tore, or a disk spoiled, is never taken for a
record. What follows the first frame that is not whole is not read: its place can no longer be known.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

MAGIC: Final = b"blspool"
VERSION: Final = b"\x01"
HEADER: Final = MAGIC + VERSION
"""What a segment begins with."""

_FRAME: Final = struct.Struct("<QQIH")  # checksum, index, bytes of the value, bytes of the key
_CHECKSUM_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Record:
    """One record: `key` as for Kafka, at most 65,535 bytes, and `value`."""

    index: int
    key: bytes
    value: bytes


class SegmentReader:
    """Reads the records of one segment in order, up to the first that is not whole.

    Attributes:
        first: the index that the segment begins with.
        index: the least index that `find` can still look for.
        offset: where the last record read ends.
    """

    def __init__(self, path: Path, first: int) -> None:
        self.first = first
        self.index = first
        self.offset = 0
        self._last: Record | None = None
        self._file = os.open(path, os.O_RDONLY)
        if self._read(len(HEADER), 0) == HEADER:
            self.offset = len(HEADER)

    def __iter__(self) -> Iterator[Record]:
        while (record := self._read_next()) is not None:
            yield record

    def find(self, index: int) -> Record | None:
        """The record of an index from `self.index` on; None where the segment has none."""
        while self._last is None or self._last.index < index:
            if self._last is not None:
                self.index = self._last.index + 1
            if self._read_next() is None:
                return None
        return self._last if self._last.index == index else None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read_next(self) -> Record | None:
        head = self._read(_FRAME.size, self.offset)
        if self.offset == 0 or len(head) < _FRAME.size:
            return None
        checksum, index, value_bytes, key_bytes = _FRAME.unpack(head)
        body = self._read(key_bytes + value_bytes, self.offset + _FRAME.size)
        if len(body) < key_bytes + value_bytes or checksum != _checksum(head[_CHECKSUM_BYTES:], body):
            return None
        self.offset += _FRAME.size + len(body)
        self._last = Record(index, body[:key_bytes], body[key_bytes:])
        return self._last

    def _read(self, count: int, offset: int) -> bytes:
        try:
            # A length from a frame that is not whole may be anything; memory is taken for what is there.
            there = os.fstat(self._file).st_size - offset
            return os.pread(self._file, max(0, min(count, there)), offset)
        except OSError:
            return b""  # a spot that the disk cannot read is as damaged as one that it reads wrongly


def frame(index: int, key: bytes, value: bytes) -> bytes:
    """The bytes of a record in a segment."""
    head = _FRAME.pack(0, index, len(value), len(key))[_CHECKSUM_BYTES:]
    body = key + value
    return b"".join((_checksum(head, body).to_bytes(_CHECKSUM_BYTES, "little"), head, body))


def _checksum(head: bytes, body: bytes) -> int:
    digest = xxhash.xxh3_64(head)
    digest.update(body)
    return digest.intdigest()
