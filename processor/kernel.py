"""Compiled kernels: one decorator, and where their machine code is cached.

A kernel is a plain loop over arrays and scalars. It allocates nothing, raises nothing and runs without the
GIL. Numba's own cache notices a change in the kernel's file but not in the files of the kernels that it
calls, so the cache folder is named after a digest of all kernel modules (`*kernels.py`): changed code never
meets a stale kernel.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

Int = Any
"""An integer inside a kernel: Python's own or a NumPy scalar of any width, which compile to what the caller
passes.
"""

Records = Any
"""A NumPy array of structured rows, whose fields kernels reach as attributes."""

Bool = Any
"""A truth value that a kernel returns."""

Function = TypeVar("Function", bound=Callable[..., Any])


def _cache_folder() -> Path:
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for source in [Path(__file__), *sorted(package.rglob("*kernels.py"))]:
        digest.update(source.read_bytes())
    name = f"{digest.hexdigest()[:16]}-py{platform.python_version()}-nb{numba.__version__}-np{np.__version__}"
    root = (
        os.environ.get("BLENDSTREAM_KERNEL_CACHE")
        or os.environ.get("XDG_CACHE_HOME")
        or Path.home() / ".cache"
    )
    return Path(root) / "blendstream" / "kernels" / name


# Numba's stubs know neither its settings nor the option that leaves reference counting out.
_numba: Any = numba

if "NUMBA_CACHE_DIR" not in os.environ:
    _numba.config.CACHE_DIR = str(_cache_folder())


def kernel(function: Function) -> Function:
    """Compile `function` without the GIL and cache the result on disk.

    Without Numba's reference counting too: a kernel makes no arrays, and counting the ones it is handed at
    each call of a helper made a store three times slower.
    """
    return cast(Function, _numba.njit(nogil=True, cache=True, error_model="numpy", _nrt=False)(function))


def entry_kernel(function: Function) -> Function:
    """Compile a function that makes arrays from addresses, which takes Numba's reference counting."""
    return cast(Function, _numba.njit(nogil=True, cache=True, error_model="numpy")(function))
