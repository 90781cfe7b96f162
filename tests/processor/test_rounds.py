"""Rounds go on by the clock, whatever becomes of one, and end when they are told to."""

from __future__ import annotations

import logging
import threading

import pytest

from processor.rounds import Rounds
from tests.waiting import wait_for


def test_one_that_fails_is_logged_and_the_next_ones_come_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone: list[int] = []

    def go() -> None:
        gone.append(len(gone))
        if len(gone) == 1:
            raise ValueError("the first one")

    rounds = Rounds("tests", 0.01, go)
    with caplog.at_level(logging.ERROR):
        rounds.start()
        wait_for(lambda: len(gone) >= 3, 10, "three rounds")
        rounds.stop()
    (record,) = caplog.records
    assert record.getMessage() == "a round of tests failed"
    assert record.exc_info is not None and str(record.exc_info[1]) == "the first one"
    ended = len(gone)
    rounds.stop()
    assert len(gone) == ended


def test_stopping_waits_for_the_round_under_way() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def go() -> None:
        begun.set()
        go_on.wait(10)
        done.append(True)

    rounds = Rounds("tests", 0.01, go)
    rounds.start()
    assert begun.wait(10)
    threading.Timer(0.05, go_on.set).start()
    rounds.stop()
    assert done == [True]


def test_an_interval_of_0_is_no_rounds_and_a_stop_without_a_start_is_no_trouble() -> None:
    rounds = Rounds("tests", 0.0, lambda: pytest.fail("a round"))
    rounds.start()
    rounds.stop()
