"""The emitter's restart counter: its start in whole seconds, and never at or below the one before.

A clock set back, or two starts within a second, would make a restarted emitter look stale, and all it says
would be dropped. So the last incarnation is kept on disk, and is there, fsynced, before the new one is
used. A file that does not hold an incarnation is refused rather than replaced, and a disk that takes none
ends the start: to start from the clock alone could repeat a number.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from producer.errors import OperatorError
from producer.events import MAX_INT

_LONGEST = len(str(MAX_INT)) + 1  # a newline behind it


class IncarnationFileError(OperatorError, ValueError):
    """The file holds something other than an incarnation."""


class IncarnationNotKept(OperatorError, OSError):
    """The disk does not take the incarnation of this start, or cannot say what the last one was."""

    def __init__(self, path: Path, cause: OSError) -> None:
        super().__init__(
            f"the incarnation of this start cannot be kept in {path}: {cause.strerror or cause}; the emitter "
            "starts once it can, as a later start could repeat an incarnation that is not on disk"
        )
        self.errno = cause.errno


def next_incarnation(path: Path, clock: Callable[[], float] = time.time) -> int:
    """The incarnation of this start: the clock in whole seconds, or one above the last if that is more.

    Returns once it is on disk. Starts that share the file, in however many processes, each get one of their
    own.

    Raises:
        IncarnationFileError: the file does not hold an incarnation below the greatest.
        IncarnationNotKept: the file or its folder cannot be read or written, as on a full disk. The last
            incarnation is on disk as before, or this one is, and the next start gets one above it.
    """
    try:
        return _next(path, clock)
    except OSError as error:
        raise IncarnationNotKept(path, error) from error


def _next(path: Path, clock: Callable[[], float]) -> int:
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        incarnation = max(int(clock()), _last(path) + 1)
        _replace(path, f"{incarnation}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    return incarnation


def _last(path: Path) -> int:
    try:
        with path.open("rb") as file:
            held = file.read(_LONGEST + 1)
    except FileNotFoundError:
        return -1
    digits = held.removesuffix(b"\n")
    if not digits.isdigit() or len(held) > _LONGEST or int(digits) >= MAX_INT:
        raise IncarnationFileError(
            f"{path} must hold an incarnation, a number below {MAX_INT}, but holds {held!r}; "
            "write one into it that is above every incarnation of this instance so far"
        )
    return int(digits)


def _replace(path: Path, content: bytes) -> None:
    # One name is enough: whoever writes here holds the folder's lock.
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
