"""A stream kept in a file, one batch a line in wire form, to be read back and replayed.

Lines are JSON, so that a trace can be read with everyday tools. A last line without its newline is a write
that was cut short: the reader leaves it out, and a sink that goes on with the file removes it first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from producer.errors import OperatorError
from producer.events import CacheEventBatch
from producer.sinks.protocol import PublishError
from producer.wire import Wire, WireError, decode_batch, encode_batch

_BLOCK: Final = 64 * 1024  # bytes


class TraceError(OperatorError, ValueError):
    """A line of a trace is not a batch."""


class TraceSink:
    """Appends batches to a file; on disk once `flush` or `close` has returned."""

    def __init__(self, path: Path, wire: Wire = Wire.COLUMNS) -> None:
        self._path = path
        self._wire = wire
        _drop_torn_line(path)
        self._file = path.open("ab", buffering=0)

    @property
    def wires(self) -> frozenset[Wire]:
        """The form of its lines."""
        return frozenset((self._wire,))

    def publish(self, batches: Sequence[CacheEventBatch]) -> None:
        """Append batches, all or none; raises `PublishError` where the file cannot be written."""
        try:
            lines = b"".join(encode_batch(batch, self._wire) + b"\n" for batch in batches)
            self._append(lines)
        except (OSError, ValueError) as error:
            raise PublishError(f"cannot write to {self._path}: {error}", len(batches)) from error

    def flush(self, timeout: float) -> bool:
        """Bring the file to disk, however long that takes; False where the disk refuses."""
        try:
            os.fsync(self._file.fileno())
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Bring the file to disk and close it."""
        if self._file.closed:
            return
        try:
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def _append(self, lines: bytes) -> None:
        end = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(lines) != len(lines):
                raise OSError("the disk is full")
        except OSError:
            # Half a line in the middle would spoil the file for its reader.
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), end)
            raise


def read_trace(path: Path) -> Iterator[CacheEventBatch]:
    """The batches of a trace in order, in whichever form each line has.

    Raises:
        TraceError: a line is not a batch; the message names the file, the line and the reason.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decode_batch(line)
            except WireError as error:
                raise TraceError(f"{path}, line {number}: {error}") from error


def _drop_torn_line(path: Path) -> None:
    if not path.is_file():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _BLOCK)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            end = start
        file.truncate(0)
