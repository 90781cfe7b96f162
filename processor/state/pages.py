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
_PRIVATE, _ANONYMOUS, _NORESERVE = 0x02, 0x20, 0x4000
_POPULATE_READ, _POPULATE_WRITE = 22, 23
_MAYMOVE, _MOVE_TO = 1, 2
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
        # Elsewhere first: where the file system refuses, what lies at `address` would be gone by then.
        elsewhere = _check(
            _libc().mmap(None, size, _READ_WRITE, _PRIVATE | _NORESERVE, file.fileno(), offset)
        )
    put_in_place(address, size, elsewhere)


def new_memory(size: int, like: int) -> int:
    """Return the address of memory that lies in its huge pages as what is at `like` does in its own.

    Raises:
        OSError: there is none.
    """
    libc, room = _libc(), size + 2 * HUGE_PAGE
    first = _check(libc.mmap(None, room, _READ_WRITE, _PRIVATE | _ANONYMOUS, -1, 0))
    start = -(-first // HUGE_PAGE) * HUGE_PAGE + like % HUGE_PAGE
    libc.munmap(first, start - first)
    libc.munmap(start + size, first + room - start - size)
    # Memory in small pages does as well.
    libc.madvise(start, size, mmap.MADV_HUGEPAGE)
    return start


def put_in_place(address: int, size: int, other: int) -> None:
    """Put the pages at `other` in place of those at `address`; at `other` there is nothing then.

    Raises:
        OSError: that cannot be done, and the pages at `address` are as they were.
    """
    try:
        _check(_libc().mremap(other, size, size, _MAYMOVE | _MOVE_TO, address))
    except OSError:
        release(other, size)
        raise


def release(address: int, size: int) -> None:
    """Give back what `new_memory` gave."""
    _libc().munmap(address, size)


def _check(result: int) -> int:
    if result in (-1, _FAILED):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


@functools.cache
def _libc() -> Any:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (address, size, number, number, number, ctypes.c_long)
    libc.mremap.argtypes = (address, size, size, number, address)
    libc.mmap.restype = libc.mremap.restype = address
    libc.munmap.argtypes = (address, size)
    libc.madvise.argtypes = (address, size, number)
    return libc
