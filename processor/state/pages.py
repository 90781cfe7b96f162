"""What the operating system is asked to do with pages of memory, by address.

Linux alone knows these calls; elsewhere every one of them fails with ENOSYS, and whoever asks goes without.
Contents are never changed: a page is made ready, lent from a file, or exchanged for another that is the same.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import sys
from pathlib import Path
from typing import Any, Final

PAGE: Final = mmap.PAGESIZE
HUGE_PAGE: Final = 2 << 20

_READ_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE
_PRIVATE, _FIXED, _NORESERVE = 0x02, 0x10, 0x4000
_POPULATE_READ, _POPULATE_WRITE = 22, 23
_MAYMOVE, _MOVE_TO, _KEEP_OLD = 1, 2, 4
_FAILED: Final = ctypes.c_void_p(-1).value


def make_readable(address: int, size: int) -> None:
    """Load pages that are mapped from a file.

    Raises:
        OSError: the file cannot be read, or the call is not known (before Linux 5.14).
    """
    _check(_libc().madvise(address, size, _POPULATE_READ))


def make_writable(address: int, size: int) -> None:
    """Find memory for pages that have none yet.

    Raises:
        OSError: there is none, or the call is not known (before Linux 5.14).
    """
    _check(_libc().madvise(address, size, _POPULATE_WRITE))


def map_file(address: int, size: int, path: Path, offset: int) -> None:
    """Let pages be what a file holds from `offset` on; writes to them do not reach it.

    Raises:
        OSError: that cannot be done, and the pages are as they were.
    """
    with path.open("rb") as file:
        flags = _PRIVATE | _FIXED | _NORESERVE
        _check(_libc().mmap(address, size, _READ_WRITE, flags, file.fileno(), offset))


def exchange(address: int, size: int, other: int) -> None:
    """Put the pages at `other` in place of those at `address`; at `other` there are empty ones then.

    Raises:
        OSError: that cannot be done.
    """
    _check(_libc().mremap(other, size, size, _MAYMOVE | _MOVE_TO | _KEEP_OLD, address))


def _check(result: int) -> None:
    if result in (-1, _FAILED):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def _libc() -> Any:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (address, size, number, number, number, ctypes.c_long)
    libc.mremap.argtypes = (address, size, size, number, address)
    libc.mmap.restype = libc.mremap.restype = address
    libc.madvise.argtypes = (address, size, number)
    return libc
