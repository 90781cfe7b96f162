"""The lock: readers together, a writer alone, and whoever comes first is served first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from processor.state.rwlock import RWLock
from tests.waiting import wait_for

TIMEOUT = 20.0


class Visitors:
    """Threads that queue at a lock one after the other, and the order in which they got in."""

    def __init__(self, lock: RWLock) -> None:
        self.lock = lock
        self.entered: list[str] = []
        self.threads: list[threading.Thread] = []

    def queue(self, name: str, write: bool, inside: Callable[[], object] = lambda: None) -> None:
        """Start a thread and wait until it stands in the queue."""
        side = self.lock.write if write else self.lock.read
        waiting = len(self.lock._queue)

        def visit() -> None:
            with side:
                self.entered.append(name)
                inside()

        thread = threading.Thread(target=visit)
        thread.start()
        self.threads.append(thread)
        wait_for(lambda: len(self.lock._queue) == waiting + 1, TIMEOUT, f"{name} in the queue")

    def join(self) -> None:
        for thread in self.threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()


@pytest.fixture
def lock() -> RWLock:
    return RWLock()


@pytest.fixture
def visitors(lock: RWLock) -> Iterator[Visitors]:
    visitors = Visitors(lock)
    yield visitors
    visitors.join()


def test_readers_are_in_together(lock: RWLock) -> None:
    together = threading.Barrier(4)

    def read() -> None:
        with lock.read:
            together.wait(TIMEOUT)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    together.wait(TIMEOUT)
    for thread in threads:
        thread.join(TIMEOUT)


def test_a_reader_that_comes_after_a_writer_waits_behind_it(lock: RWLock, visitors: Visitors) -> None:
    with lock.read:
        visitors.queue("writer", write=True)
        visitors.queue("reader", write=False)
        assert visitors.entered == []
    visitors.join()
    assert visitors.entered == ["writer", "reader"]


def test_a_writer_that_comes_again_lets_waiting_readers_pass_first(lock: RWLock, visitors: Visitors) -> None:
    with lock.write:
        visitors.queue("reader", write=False)
        visitors.queue("writer", write=True)
    visitors.join()
    assert visitors.entered == ["reader", "writer"]


def test_readers_next_to_each_other_in_the_queue_enter_together(lock: RWLock, visitors: Visitors) -> None:
    together = threading.Barrier(2)
    with lock.write:
        visitors.queue("first", write=False, inside=lambda: together.wait(TIMEOUT))
        visitors.queue("second", write=False, inside=lambda: together.wait(TIMEOUT))
        visitors.queue("writer", write=True)
        visitors.queue("third", write=False)
    visitors.join()
    assert not together.broken
    assert sorted(visitors.entered[:2]) == ["first", "second"]
    assert visitors.entered[2:] == ["writer", "third"]


def test_an_error_inside_gives_the_lock_back(lock: RWLock) -> None:
    for side in (lock.write, lock.read):
        with pytest.raises(KeyError), side:
            raise KeyError
    with lock.write:
        pass


def test_nobody_sees_what_a_writer_has_half_done(lock: RWLock) -> None:
    pair = [0, 0]
    torn: list[tuple[int, int]] = []

    def write() -> None:
        for _ in range(500):
            with lock.write:
                value = pair[0] + 1
                pair[0] = value
                pair[1] = value

    def read() -> None:
        while pair[0] < 1000:
            with lock.read:
                first = pair[0]
                second = pair[1]
                if first != second:
                    torn.append((first, second))

    threads = [threading.Thread(target=target) for target in (write, write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    assert pair == [1000, 1000]
    assert not torn
