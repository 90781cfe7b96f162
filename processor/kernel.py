"""Compiled kernels: one decorator, and where their machine code is cached.

A kernel is a plain loop over arrays and scalars. It allocates nothing, raises nothing and runs without the
GIL. Numba's own cache notices a change in the kernel's file but not in the files of the kernels that it
calls, nor in those of the constants and types that it freezes, so the cache folder is named after a digest of
all kernel modules (`*kernels.py`) and of all that they import from here: changed code never meets a stale
kernel.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.extending
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types

Int = Any
"""An integer inside a kernel: Python's own or a NumPy scalar of any width, which compile to what the caller
passes.
"""

Records = Any
"""A NumPy array of structured rows, whose fields kernels reach as attributes."""

Bool = Any
"""A truth value that a kernel returns."""

Function = TypeVar("Function", bound=Callable[..., Any])

FROZEN = ("kernel.py", "state/hashing.py", "state/layout.py")
"""What kernel modules import from this package beside each other, and hold in their machine code."""


def kernel_sources(package: Path) -> list[Path]:
    """Return the files of a package that its machine code is made from."""
    return [*(package / name for name in FROZEN), *sorted(package.rglob("*kernels.py"))]


def cache_name(package: Path) -> str:
    """Return the name of the folder for a package's machine code, which no other source or version shares."""
    digest = hashlib.sha256()
    for source in kernel_sources(package):
        digest.update(source.read_bytes())
    return f"{digest.hexdigest()[:16]}-py{platform.python_version()}-nb{numba.__version__}-np{np.__version__}"


def _cache_folder() -> Path:
    root = (
        os.environ.get("BLENDSTREAM_KERNEL_CACHE")
        or os.environ.get("XDG_CACHE_HOME")
        or Path.home() / ".cache"
    )
    return Path(root) / "blendstream" / "kernels" / cache_name(Path(__file__).parent)


# Numba's stubs know neither its settings nor the option that leaves reference counting out.
_numba: Any = numba
_cgutils: Any = cgutils

if "NUMBA_CACHE_DIR" not in os.environ:
    _numba.config.CACHE_DIR = str(_cache_folder())


def kernel(function: Function) -> Function:
    """Compile `function` without the GIL and cache the result on disk.

    Without Numba's reference counting too: a kernel makes no arrays, and counting the ones it is handed at
    each call of a helper made a store three times slower.
    """
    return cast(Function, _numba.njit(nogil=True, cache=True, error_model="numpy", _nrt=False)(function))


def _typed_prefetch(typing: Any, array: Any, index: Any, field: Any) -> Any:
    if not (
        isinstance(array, types.Array)
        and isinstance(index, types.Integer)
        and isinstance(field, types.StringLiteral)
    ):
        return None
    offset = array.dtype.offset(field.literal_value) if isinstance(array.dtype, types.Record) else 0

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        byte = ir.IntType(8).as_pointer()
        place = builder.mul(builder.zext(arguments[1], ir.IntType(64)), ir.Constant(ir.IntType(64), stride))
        target = builder.gep(
            builder.bitcast(data, byte), [builder.add(place, ir.Constant(ir.IntType(64), offset))]
        )
        flag = ir.IntType(32)
        call = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        intrinsic = _cgutils.get_or_insert_function(builder.module, call, "llvm.prefetch.p0")
        builder.call(intrinsic, [target, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    stride = array.dtype.size if isinstance(array.dtype, types.Record) else array.dtype.bitwidth // 8
    return types.void(array, index, field), generate


prefetch: Any = _numba.extending.intrinsic(_typed_prefetch)
"""`prefetch(array, index, field)`: begin to load a field of an element ("" in a plain array), not waiting."""


def entry_kernel(function: Function) -> Function:
    """Compile a function that makes arrays from addresses, which takes Numba's reference counting."""
    return cast(Function, _numba.njit(nogil=True, cache=True, error_model="numpy")(function))
