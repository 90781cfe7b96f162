"""A disk that is small enough to be filled: a tmpfs in a mount namespace, which no other process sees.

Whoever is to work on it is started with `within` before its command. From outside, its files are reached
under `seen`. Both go with the namespace at the end.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BLOCK = 4096
_MOUNT = 'mount -t tmpfs -o "$1" tmpfs "$2" && echo mounted && exec cat'
"""Holds the namespace until its input ends."""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A mounted disk.

    Attributes:
        path: where the processes within find it.
        seen: where this process does.
        within: what to put before a command.
    """

    path: Path
    seen: Path
    within: tuple[str, ...]

    def fill(self, leave: int = 0) -> None:
        """Take all the room there is, but `leave` bytes."""
        ballast = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while (free := self.free() - leave) > 0:
                os.write(ballast, bytes(min(free, 2**20)))
        except OSError as error:
            # Others write too, and were faster.
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(ballast)

    def make_room(self) -> None:
        """Give back what `fill` took."""
        self._ballast.unlink()

    def free(self) -> int:
        """Bytes that can still be written."""
        room = os.statvfs(self.seen)
        return room.f_bavail * room.f_frsize

    @property
    def _ballast(self) -> Path:
        return self.seen / "ballast"


@contextmanager
def small_disk(path: Path, size: int, names: int = 0) -> Iterator[SmallDisk]:
    """A disk of `size` bytes at `path`, an empty folder; with room for so many `names`, if that is given."""
    path.mkdir()
    options = f"size={size},nr_inodes={names}" if names else f"size={size}"
    holder = subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", _MOUNT, "sh", options, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert holder.stdout.readline() == "mounted\n"
        within = ("nsenter", "-t", str(holder.pid), "-U", "-m", "--preserve-credentials")
        yield SmallDisk(path, Path(f"/proc/{holder.pid}/root{path}"), within)
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()
