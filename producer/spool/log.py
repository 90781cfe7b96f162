"""A queue of records on disk: appended at one end, acknowledged at the other, and still there after a crash.

Records are numbered by an index that never falls, and lie in segments, files of bounded size named by the
first index in them. What a crash tore, or a disk spoiled, costs the rest of its segment and shows as indices
that `read` has nothing for. A segment goes when all of it is acknowledged. How far that is stands in a file
of its own, which may lag behind, and then has records read twice, but never leads.

One thread may append while another reads, acknowledges and syncs. A write reaches the kernel at once and so
outlives the process; `sync` makes it outlive the machine. Whoever opens the folder holds its lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from producer.errors import OperatorError
from producer.spool.segment import HEADER, MAGIC, VERSION, Record, SegmentReader, frame

SEGMENT_BYTES: Final = 8 * 2**20
"""A segment ends with the record that reaches this size."""
SEGMENTS_AT_LEAST: Final = 8
"""Segments that the bound has room for; smaller ones where that takes it."""

_SUFFIX: Final = ".segment"
_ACKNOWLEDGED: Final = struct.Struct("<QQ")  # index, checksum


class SpoolError(OperatorError):
    """A spool's folder cannot be used; the message names it and says why."""


class SpoolInUse(SpoolError):
    """Another spool is open on the folder."""


class SpoolFull(SpoolError):
    """A record would take the spool beyond its bound."""


@dataclass(slots=True)
class _Segment:
    first: int
    path: Path
    size: int


class SpoolLog:
    """The records of one folder, which is made if missing, readable by its owner alone.

    Attributes:
        first: the least index not acknowledged.
        next: the index that the next record gets.
        size: bytes of all segments.
        torn: how many ends of segments a crash left incomplete, found and cut off when opening.

    Raises:
        SpoolInUse: another process, or another log in this one, holds the folder.
        SpoolError: a file there is of another version.
        OSError: the folder cannot be read or written.
    """

    def __init__(self, folder: Path, max_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment_bytes = min(segment_bytes, max_bytes // SEGMENTS_AT_LEAST)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptors = [_locked(folder)]
        self._reader: SegmentReader | None = None
        # Guards the segments and what is counted over them; never held across a sync or a read.
        self._guard = threading.Lock()
        self._active: int | None = None
        self._unsynced: list[int] = []
        self._dirty = False
        self.torn = 0
        try:
            self._folder_fd = self._open(folder, os.O_RDONLY | os.O_DIRECTORY)
            self._acknowledged = self._open(folder / "acknowledged", os.O_RDWR | os.O_CREAT)
            self._segments = self._found_segments()
            acknowledged = _read_acknowledged(self._acknowledged)
            self.next = max(acknowledged, self._mend_last_segment())
            self.size = sum(segment.size for segment in self._segments)
            self.first = max(acknowledged, self._segments[0].first) if self._segments else self.next
            self._drop_acknowledged()
        except BaseException:
            self._release()
            raise

    def append(self, key: bytes, value: bytes) -> int:
        """Write a record and return its index.

        Raises:
            SpoolFull: the bound would be passed. Nothing was written.
            OSError: the disk does not take it. Nothing was written.
        """
        with self._guard:
            content = frame(self.next, key, value)
            if self.size + len(content) > self._max_bytes:
                raise SpoolFull(
                    f"the spool in {self._folder} has reached its bound of {self._max_bytes} bytes"
                )
            if self._active is None or self._segments[-1].size >= self._segment_bytes:
                self._begin_segment()
            self._write(content)
            index = self.next
            self.next += 1
            return index

    def skip(self) -> int:
        """Use up an index for a record that is kept elsewhere."""
        with self._guard:
            self.next += 1
            return self.next - 1

    def read(self, index: int) -> Record | None:
        """The record of an index below `next`, or None where the disk has none. Fast in ascending order."""
        with self._guard:
            segment = next((one for one in reversed(self._segments) if one.first <= index), None)
        if segment is None:
            return None
        if self._reader is None or self._reader.first != segment.first or self._reader.index > index:
            self._close_reader()
            try:
                self._reader = SegmentReader(segment.path, segment.first)
            except FileNotFoundError:
                return None
        return self._reader.find(index)

    def acknowledge(self, index: int) -> None:
        """Let go of all records below `index`.

        Raises:
            OSError: the disk refuses. They are let go of all the same, and may come back when opened again.
        """
        with self._guard:
            self.first = max(self.first, index)
        digits = self.first.to_bytes(8, "little")
        content = _ACKNOWLEDGED.pack(self.first, xxhash.xxh3_64_intdigest(digits))
        self._dirty = True
        try:
            os.pwrite(self._acknowledged, content, 0)
        finally:
            self._drop_acknowledged()

    def sync(self) -> None:
        """Bring what was written to disk, if anything was.

        Raises:
            OSError: the disk fails. What it did not take is tried again the next time.
        """
        with self._guard:
            if not self._dirty:
                return
            self._dirty = False
            ended = self._unsynced[:]
            current = [] if self._active is None else [self._active]
        failed: dict[int, OSError] = {}
        for descriptor in (*ended, *current, self._acknowledged, self._folder_fd):
            try:
                (os.fsync if descriptor == self._folder_fd else os.fdatasync)(descriptor)
            except OSError as error:
                failed[descriptor] = error
        with self._guard:
            self._dirty |= bool(failed)
            for descriptor in ended:
                if descriptor not in failed or _gone(descriptor):
                    self._unsynced.remove(descriptor)
                    os.close(descriptor)
        if failed:
            raise next(iter(failed.values()))

    def close(self) -> None:
        """Bring everything to disk and let go of the folder, with no segment left where nothing waits."""
        try:
            if self._active is not None:
                with self._guard:
                    self._end_segment()
            self._drop_acknowledged()
            self.sync()
        finally:
            self._release()

    def _found_segments(self) -> list[_Segment]:
        segments: list[_Segment] = []
        for path in sorted(self._folder.glob("*" + _SUFFIX)):
            digits = path.name.removesuffix(_SUFFIX)
            if not digits.isdigit():
                continue
            with path.open("rb") as file:
                header = file.read(len(HEADER))
            if header[: len(MAGIC)] == MAGIC and header[len(MAGIC) :] not in (b"", VERSION):
                raise SpoolError(f"{path} is of a version that this one cannot read: {header!r}")
            segments.append(_Segment(int(digits), path, path.stat().st_size))
        return segments

    def _mend_last_segment(self) -> int:
        """Cut off what is not whole at the very end, and return one past the last index on disk.

        A crash tears the last segment alone; damage to an earlier one is met when it is read.
        """
        if not self._segments:
            return 0
        last = self._segments[-1]
        end = last.first
        reader = SegmentReader(last.path, last.first)
        for record in reader:
            end = record.index + 1
        reader.close()
        if reader.offset < last.size:
            self.torn += 1
        if end == last.first:
            self._segments.pop().path.unlink()
        elif reader.offset < last.size:
            os.truncate(last.path, reader.offset)
            last.size = reader.offset
        return end

    def _begin_segment(self) -> None:
        path = self._folder / f"{self.next:020}{_SUFFIX}"
        # A file of this name can only be one whose beginning failed, with nothing in it.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(descriptor, HEADER, 0)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        self._end_segment()
        self._active = descriptor
        self._segments.append(_Segment(self.next, path, len(HEADER)))
        self.size += len(HEADER)

    def _end_segment(self) -> None:
        if self._active is not None:
            self._unsynced.append(self._active)
            self._active = None

    def _write(self, frame: bytes) -> None:
        assert self._active is not None
        segment = self._segments[-1]
        try:
            _write_all(self._active, frame, segment.size)
        except OSError:
            # A crash must not find torn what was never counted. And what is in this segment has to be able to
            # go, or a disk that is full stays so.
            with suppress(OSError):
                os.ftruncate(self._active, segment.size)
            if segment.size > len(HEADER):
                self._end_segment()
            raise
        segment.size += len(frame)
        self.size += len(frame)
        self._dirty = True

    def _drop_acknowledged(self) -> None:
        dropped: list[_Segment] = []
        with self._guard:
            while self._segments and self._first_segment_is_done():
                dropped.append(self._segments.pop(0))
                self.size -= dropped[-1].size
        for segment in dropped:
            if self._reader is not None and self._reader.first == segment.first:
                self._close_reader()
            segment.path.unlink(missing_ok=True)

    def _first_segment_is_done(self) -> bool:
        if len(self._segments) > 1:
            return self._segments[1].first <= self.first
        return self._active is None and self.next <= self.first

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _release(self) -> None:
        self._close_reader()
        self._end_segment()
        for descriptor in (*self._unsynced, *self._descriptors):
            os.close(descriptor)
        self._unsynced, self._descriptors = [], []

    def _open(self, path: Path, flags: int) -> int:
        self._descriptors.append(os.open(path, flags, 0o600))
        return self._descriptors[-1]


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    if os.pwrite(descriptor, data, offset) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _gone(descriptor: int) -> bool:
    """Whether the file has no name any more: it needs no sync, and takes room for as long as it is open."""
    return os.fstat(descriptor).st_nlink == 0


def _read_acknowledged(descriptor: int) -> int:
    """The index kept in the file; 0 where it holds none, so that everything there is comes again."""
    content = os.pread(descriptor, _ACKNOWLEDGED.size + 1, 0)
    if len(content) != _ACKNOWLEDGED.size:
        return 0
    index, checksum = _ACKNOWLEDGED.unpack(content)
    valid = checksum == xxhash.xxh3_64_intdigest(content[:8])
    return int(index) if valid else 0


def _locked(folder: Path) -> int:
    """The descriptor that holds the folder's lock for as long as it is open."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise SpoolInUse(f"another emitter spools in {folder}; each needs a folder of its own") from None
    return lock
