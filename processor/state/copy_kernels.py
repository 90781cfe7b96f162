"""Copying pieces of tables from one place in memory to another, without the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from processor.kernel import Int, kernel


def _type_memcpy(typing: Any, to: Any, source: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = context.get_value_type(types.voidptr)
        to, source, size = arguments
        memcpy: Any = cgutils.raw_memcpy
        memcpy(builder, builder.inttoptr(to, pointer), builder.inttoptr(source, pointer), size, 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), generate


_memcpy: Any = intrinsic(_type_memcpy)


@kernel
def copy_runs(runs: NDArray[np.uint64], begin: Int, end: Int) -> None:
    """Copy the runs `begin` to `end`; `runs` is uint64[n, 3] of (address to, address from, bytes)."""
    for i in range(begin, end):
        _memcpy(runs[i, 0], runs[i, 1], runs[i, 2])
