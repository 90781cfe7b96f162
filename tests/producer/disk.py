"""What may happen to a spool's folder: its process is killed, its disk is full."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.segment"))


def after_crash(folder: Path) -> Path:
    """A copy of the folder as a killed process leaves it: nothing closed, the lock gone."""
    copy = folder.with_name(folder.name + "-")
    shutil.copytree(folder, copy)
    return copy


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """As on a disk that is full, writes end short at a file's `size` bytes and fail beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
