"""When checkpoints are written, and what is told of them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from processor.durability.checkpointer import Checkpointer
from processor.durability.errors import CheckpointAbandoned, CheckpointError
from processor.durability.quiesce import Capture
from tests.processor.durability.keeping import Kept, answers, grown
from tests.producer.disk import files_limited_to
from tests.waiting import wait_for


class Told:
    """Keeps the captures that became durable, and how many checkpoints there were when it was told."""

    def __init__(self, kept: Kept) -> None:
        self.captures: list[Capture] = []
        self.numbers: list[int] = []
        self._kept = kept

    def __call__(self, captured: Capture) -> None:
        self.captures.append(captured)
        self.numbers.append(self._kept.folder.numbers()[0])


def test_it_writes_by_the_clock(tmp_path: Path) -> None:
    kept, _ = grown(tmp_path, steps=20)
    checkpointer = Checkpointer(kept.writer, 0.01, Told(kept))
    checkpointer.start()
    wait_for(lambda: checkpointer.counts()[1] >= 3, 30, "three checkpoints")
    checkpointer.stop(30)
    kept.close()


def test_without_an_interval_it_writes_when_asked_and_answers_when_it_is_durable(tmp_path: Path) -> None:
    kept, fleet = grown(tmp_path, steps=20)
    told = Told(kept)
    checkpointer = Checkpointer(kept.writer, 0, told)
    checkpointer.start()
    first = checkpointer.ask().result(60)
    fleet.step()
    second = checkpointer.ask().result(60)
    assert (first.number, second.number) == (1, 2)
    assert told.numbers == [1, 2]
    assert checkpointer.counts()[0] == second
    assert checkpointer.counts()[1] == 2
    checkpointer.stop(30)
    assert told.numbers == [1, 2, 3]
    kept.close()


def test_whoever_asks_while_one_is_written_gets_one_that_began_later(tmp_path: Path) -> None:
    kept, _ = grown(tmp_path, steps=20)
    began, go_on = threading.Event(), threading.Event()

    class Slow:
        def write(self, pause: object) -> object:
            began.set()
            go_on.wait(30)
            return kept.writer.write()

    checkpointer = Checkpointer(Slow(), 0, Told(kept))  # type: ignore[arg-type]
    checkpointer.start()
    numbers: list[int] = []
    threads = [
        threading.Thread(target=lambda: numbers.append(checkpointer.ask().result(60).number))
        for _ in range(3)
    ]
    threads[0].start()
    assert began.wait(30)
    for thread in threads[1:]:
        thread.start()
    wait_for(lambda: len(checkpointer._asked) == 2, 30, "another one asks")
    go_on.set()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == [1, 2, 2]
    checkpointer.stop(30)
    kept.close()


def test_a_failure_is_counted_and_told_to_who_asked_and_the_next_one_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, _ = grown(tmp_path)
    told = Told(kept)
    checkpointer = Checkpointer(kept.writer, 0, told)
    checkpointer.start()
    with files_limited_to(1_000), pytest.raises(CheckpointError, match="too large"):
        checkpointer.ask().result(60)
    assert checkpointer.counts()[2] == 1
    assert [record.exc_info for record in caplog.records] == [None], "a full disk is told without a traceback"
    assert told.captures == []
    assert checkpointer.ask().result(60).number == 1
    assert checkpointer.counts()[1] == 1
    checkpointer.stop(30)
    kept.close()


def test_a_failure_that_nobody_foresaw_is_logged_with_its_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _ = grown(tmp_path)

    def write(check_time: object) -> None:
        raise KeyError("positions")

    monkeypatch.setattr(kept.writer, "write", write)
    checkpointer = Checkpointer(kept.writer, 0, Told(kept))
    checkpointer.start()
    with pytest.raises(CheckpointError, match="positions"):
        checkpointer.ask().result(60)
    assert "Traceback" in caplog.text
    checkpointer.stop(30)
    kept.close()


def test_the_last_one_holds_what_came_before_the_stop(tmp_path: Path) -> None:
    kept, fleet = grown(tmp_path, steps=50)
    checkpointer = Checkpointer(kept.writer, 3600, Told(kept))
    checkpointer.start()
    fleet.store_new(5)
    checkpointer.stop(30)
    kept.close()
    other = Kept(tmp_path)
    assert answers(other.held) == answers(kept.held)
    other.close()
    with pytest.raises(CheckpointAbandoned):
        checkpointer.ask()


def test_where_there_is_no_time_for_a_last_one_those_before_stand(tmp_path: Path) -> None:
    kept, fleet = grown(tmp_path, steps=50)
    checkpointer = Checkpointer(kept.writer, 0, Told(kept))
    checkpointer.start()
    checkpointer.ask().result(60)
    before = answers(kept.held)
    fleet.store_new(5)
    checkpointer.stop(-1)
    assert checkpointer.counts()[2] == 1
    kept.close()
    other = Kept(tmp_path)
    assert answers(other.held) == before
    other.close()
