"""What may happen to a spool's folder: its process is killed, its disk is full, its disk fails."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


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


class FailingSync:
    """In place of the real syncs, which no disk here can be made to fail: what was asked for, by file name.

    Attributes:
        synced: files that were synced, in order.
        refused: files that were to be synced, and that the disk failed on.
        failing: names of the files that it fails on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: list[str] = []
        self.refused: list[str] = []
        self.failing: set[str] = set()
        monkeypatch.setattr("os.fdatasync", self._sync)
        monkeypatch.setattr("os.fsync", self._sync)

    def _sync(self, descriptor: int) -> None:
        name = descriptor_name(descriptor)
        if name in self.failing:
            self.refused.append(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.synced.append(name)


def descriptor_name(descriptor: int) -> str:
    """The name of an open file, without its folder; of one that was removed, too."""
    return Path(f"/proc/self/fd/{descriptor}").readlink().name.removesuffix(" (deleted)")


def removed_files_still_open(folder: Path) -> list[str]:
    """Files of the folder that this process holds open though they have no name any more."""
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(link.readlink()))
        except FileNotFoundError:  # the listing's own
            continue
    return [one for one in targets if one.startswith(f"{folder}/") and one.endswith(" (deleted)")]
