"""The folder that holds checkpoints, and what makes one of them the current one.

    PATH/lock                held by the process that writes here
    PATH/checkpoint-41/      the one before
    PATH/checkpoint-42/      the current one: the greatest number
    PATH/writing-43/         one being written, or what a crash left of it
    PATH/leaving-40/         one being removed, or what a crash left of it

A checkpoint is written under a name that nobody reads and gets its own by one rename, when all of it is on
disk: that is the switch, and there is no pointer beside it that could be lost. Two are kept. They share no
file, so that what damages one leaves the other.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from processor.durability.errors import FolderRefused

logger = logging.getLogger(__name__)

LOCK = "lock"
KEPT = 2
PRIVATE = 0o700
"""The secret that hashes are keyed with lies in here."""

_CHECKPOINT = re.compile(r"checkpoint-([1-9][0-9]*)")
_UNFINISHED = re.compile(r"(writing|leaving)-[0-9]+")
_NOT_OURS_TO_MIND = {LOCK, "lost+found"}


class CheckpointFolder:
    """The folder at `path`; for reading at once, for writing after `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def open(self) -> None:
        """Make the folder if there is none, lock it, and clear away what a crash left.

        Raises:
            FolderRefused: it is something else, another process holds it, or it cannot be written.
        """
        self.check()
        try:
            self.path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            self._make_private()
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for entry in self.path.iterdir():
                if _UNFINISHED.fullmatch(entry.name):
                    _remove(entry)
        except BlockingIOError:
            self.close()
            raise FolderRefused(
                f"another process keeps its checkpoints in {self.path}; each needs a folder of its own"
            ) from None
        except OSError as error:
            self.close()
            raise FolderRefused(f"cannot keep checkpoints in {self.path}: {error.strerror}") from None

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def check(self) -> None:
        """Raise `FolderRefused` unless the path is a checkpoint folder, empty, or free to become one."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise FolderRefused(
                f"{self.path} is a file, and checkpoints are a folder; what LMCache wrote cannot be read: "
                "choose another path, and the state is built from the log"
            )
        try:
            names = [entry.name for entry in self.path.iterdir()]
        except OSError as error:
            raise FolderRefused(f"cannot read {self.path}: {error.strerror}") from None
        strange = [name for name in names if not _is_ours(name)]
        if strange and LOCK not in names and not any(map(_CHECKPOINT.fullmatch, names)):
            raise FolderRefused(
                f"{self.path} is no folder of checkpoints: it holds {min(strange)!r}; choose an empty folder"
            )

    def numbers(self) -> list[int]:
        """The checkpoints there are, the current one first."""
        return sorted((number for entry, number in self._named() if _is_folder(entry)), reverse=True)

    def next_number(self) -> int:
        """The number of the next checkpoint; what merely bears the name of one counts, too."""
        return max((number for _, number in self._named()), default=0) + 1

    def checkpoint(self, number: int) -> Path:
        """Where a checkpoint lies."""
        return self.path / f"checkpoint-{number}"

    def begin(self, number: int) -> Path:
        """An empty folder to write a checkpoint into."""
        folder = self.path / f"writing-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=PRIVATE)
        return folder

    def publish(self, number: int) -> None:
        """Make a checkpoint whose files are on disk the current one. It is so, or not at all."""
        folder = self.path / f"writing-{number}"
        sync_folder(folder)
        folder.rename(self.checkpoint(number))
        try:
            sync_folder(self.path)
        except OSError:
            # One that counts as failed must not be there: the next would be built on what came before it.
            self.remove(number)
            raise

    def abandon(self, number: int) -> None:
        """Remove what was written of a checkpoint."""
        shutil.rmtree(self.path / f"writing-{number}", ignore_errors=True)

    def prune(self) -> None:
        """Remove all but the last `KEPT` checkpoints."""
        for number in self.numbers()[KEPT:]:
            self.remove(number)

    def remove(self, number: int) -> None:
        """Remove a checkpoint: at once by its name, then file by file."""
        leaving = self.path / f"leaving-{number}"
        try:
            self.checkpoint(number).rename(leaving)
            _remove(leaving)
        except OSError as error:
            logger.warning("checkpoint %d could not be removed: %s", number, error)

    def _named(self) -> Iterator[tuple[Path, int]]:
        """What bears the name of a checkpoint."""
        if self.path.is_dir():
            for entry in self.path.iterdir():
                if match := _CHECKPOINT.fullmatch(entry.name):
                    yield entry, int(match[1])

    def _make_private(self) -> None:
        try:
            self.path.chmod(PRIVATE)
        except OSError:
            # A mounted volume may belong to somebody else; the checkpoints in it are private all the same.
            logger.warning("%s cannot be made private to this user", self.path)


def _is_ours(name: str) -> bool:
    known = _CHECKPOINT.fullmatch(name) or _UNFINISHED.fullmatch(name)
    return name in _NOT_OURS_TO_MIND or known is not None


def _is_folder(entry: Path) -> bool:
    """Whether it is one itself: what a link leads to is somebody else's."""
    return entry.is_dir() and not entry.is_symlink()


def _remove(entry: Path) -> None:
    if _is_folder(entry):
        shutil.rmtree(entry)
    else:
        entry.unlink()


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
