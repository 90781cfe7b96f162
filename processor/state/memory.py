"""Address space reserved ahead, so that tables grow without ever moving.

A reservation is an anonymous private mapping without swap reserve: it costs nothing until a page is touched,
reads as zero, and gives its memory back when the array and all views of it are gone. Rows are therefore laid
out so that zero means "nothing": row 0 of every table stays unused, and a link of 0 ends a chain.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_HUGE_FROM_BYTES = 64 << 20


def reserve(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return a zeroed array whose pages come into being as they are touched.

    Raises:
        MemoryError: the address space is not to be had (a strict overcommit policy, or `ulimit -v`).
    """
    dimensions = (shape,) if isinstance(shape, int) else shape
    kind = np.dtype(dtype)
    count = int(np.prod(dimensions, dtype=np.int64))
    size = max(count * kind.itemsize, 1)
    try:
        region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(
            f"cannot reserve {size:,} bytes of address space: {error}; lower --max-chunks"
        ) from error
    if size >= _HUGE_FROM_BYTES:
        region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, dtype=kind, count=count).reshape(dimensions)


def machine_memory() -> int:
    """Return the bytes of memory this process may use: the machine's, or the control group's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit_file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(limit_file, encoding="ascii") as file:  # noqa: PTH123
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total
