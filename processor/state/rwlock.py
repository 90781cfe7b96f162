"""A fair lock for many readers or one writer.

Whoever comes first is served first: a writer that applies a batch slice by slice lets every reader that came
meanwhile pass before its next slice, and readers that keep coming cannot hold the writer off. Readers that
stand next to each other in the queue enter together. `mutex` guards the three fields and is never held while
waiting.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class _Side:
    """One way of holding the lock, as a context manager; reusable and safe to share between threads."""

    __slots__ = ("_lock", "_write")

    def __init__(self, lock: RWLock, write: bool) -> None:
        self._lock = lock
        self._write = write

    def __enter__(self) -> None:
        self._lock._acquire(self._write)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock._release(self._write)


class RWLock:
    """Use as `with lock.read:` or `with lock.write:`; not reentrant."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._readers = 0
        self._writing = False
        self._queue: deque[tuple[bool, threading.Lock]] = deque()
        self.read = _Side(self, write=False)
        self.write = _Side(self, write=True)

    def _acquire(self, write: bool) -> None:
        with self._mutex:
            free = not self._writing and not self._queue and (not write or self._readers == 0)
            if free:
                self._enter(write)
                return
            turn = threading.Lock()
            turn.acquire()
            self._queue.append((write, turn))
        turn.acquire()

    def _release(self, write: bool) -> None:
        with self._mutex:
            if write:
                self._writing = False
            else:
                self._readers -= 1
            while self._queue and not self._writing:
                next_writes, turn = self._queue[0]
                if next_writes and self._readers:
                    break
                self._queue.popleft()
                self._enter(next_writes)
                turn.release()

    def _enter(self, write: bool) -> None:
        if write:
            self._writing = True
        else:
            self._readers += 1
