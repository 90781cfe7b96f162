"""Fan-out: everyone hears everything in one order, and nobody pays for another's failure."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from processor.batch import Admission
from processor.ingest.broadcaster import Broadcaster
from tests.processor.ingest.recorder import Recorder, batch


class Shared(Recorder):
    """A recorder that also writes into a list which several share; it can be made to fail at anything."""

    def __init__(self, name: str, log: list[tuple[str, object]]) -> None:
        super().__init__(name)
        self.log = log
        self.broken = False

    def _hear(self, what: str) -> None:
        if self.broken:
            raise RuntimeError(f"{self.name} is broken")
        self.log.append((self.name, what))

    def consume(self, admission: Admission) -> None:
        self._hear("consume")

    def fence(self, instance_id: str) -> None:
        self._hear(f"fence {instance_id}")

    def settle(self, instance_id: str) -> None:
        self._hear(f"settle {instance_id}")

    def expire(self, before: float) -> None:
        self._hear(f"expire {before}")


def admission() -> Admission:
    return Admission(batch(7, incarnation=3), epoch=1)


CALLS: list[tuple[str, Callable[[Broadcaster], object]]] = [
    ("consume", lambda to: to.broadcast(admission())),
    ("fence a", lambda to: to.fence("a")),
    ("settle a", lambda to: to.settle("a")),
    ("expire 5.0", lambda to: to.expire(5.0)),
]


@pytest.mark.parametrize(("what", "call"), CALLS)
def test_consumers_hear_in_the_order_in_which_they_were_named(
    what: str, call: Callable[[Broadcaster], object]
) -> None:
    log: list[tuple[str, object]] = []
    call(Broadcaster([Shared("first", log), Shared("second", log)]))
    assert log == [("first", what), ("second", what)]


@pytest.mark.parametrize(("what", "call"), CALLS)
def test_one_that_raises_is_counted_and_logged_and_the_others_hear_all_the_same(
    what: str, call: Callable[[Broadcaster], object], caplog: pytest.LogCaptureFixture
) -> None:
    log: list[tuple[str, object]] = []
    broken, well = Shared("first", log), Shared("second", log)
    broken.broken = True
    broadcaster = Broadcaster([broken, well])
    with caplog.at_level(logging.ERROR):
        call(broadcaster)
    assert log == [("second", what)]
    assert broadcaster.failures == {"first": 1}
    (line,) = caplog.records
    assert "first failed" in line.getMessage()
    assert line.exc_info is not None, "a failure that nobody foresaw comes with its traceback"


def test_those_that_raised_are_returned_and_the_log_names_the_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Shared("first", [])
    broken.broken = True
    assert Broadcaster([broken, Shared("second", [])]).broadcast(admission()) == [broken]
    assert "batch 7 of server-1, incarnation 3" in caplog.text


def test_a_batch_can_go_to_some_alone() -> None:
    log: list[tuple[str, object]] = []
    first, second = Shared("first", log), Shared("second", log)
    assert Broadcaster([first, second]).broadcast(admission(), [second]) == []
    assert log == [("second", "consume")]
    assert Broadcaster([first, second]).broadcast(admission(), []) == []
    assert log == [("second", "consume")], "nobody is not everybody"
