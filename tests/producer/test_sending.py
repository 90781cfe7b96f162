"""Sending: every row of its table, and that nothing overtakes a record that was not taken."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.sinks.protocol import Answer
from producer.spool.sending import TRANSITIONS, Sending, SendingEvent, SendingState
from producer.transitions import TransitionError

TAKEN, FAILED, REFUSED, BEGUN_AGAIN = SendingEvent
END = 100


def send(sending: Sending, count: int = 1) -> list[int]:
    """Put up to so many records in flight, as long as there is one to send."""
    sent: list[int] = []
    while len(sent) < count and (index := sending.next(END)) is not None:
        sending.sent(index)
        sent.append(index)
    return sent


def flowing() -> Sending:
    sending = Sending(0)
    assert send(sending, 3) == [0, 1, 2]
    return sending


def alone() -> Sending:
    sending = failed()
    assert sending.begin_again() is None
    assert send(sending, 3) == [0]
    return sending


def failed() -> Sending:
    sending = flowing()
    sending.broken()
    return sending


def failed_alone() -> Sending:
    sending = alone()
    sending.broken()
    return sending


def refused() -> Sending:
    sending = alone()
    sending.answered(0, Answer.REFUSED)
    return sending


MADE: dict[SendingState, Callable[[], Sending]] = {
    SendingState.FLOWING: flowing,
    SendingState.ALONE: alone,
    SendingState.FAILED: failed,
    SendingState.FAILED_ALONE: failed_alone,
    SendingState.REFUSED: refused,
}
HAPPENS: dict[SendingEvent, Callable[[Sending], object]] = {
    TAKEN: lambda sending: sending.answered(0, Answer.TAKEN),
    FAILED: lambda sending: sending.answered(0, Answer.FAILED),
    REFUSED: lambda sending: sending.answered(0, Answer.REFUSED),
    BEGUN_AGAIN: lambda sending: sending.begin_again(),
}
ROWS: list[tuple[str, dict[SendingEvent, str]]] = [
    ("FLOWING", {TAKEN: "FLOWING", FAILED: "FAILED", REFUSED: "FAILED"}),
    ("ALONE", {TAKEN: "FLOWING", FAILED: "FAILED_ALONE", REFUSED: "REFUSED"}),
    ("FAILED", {TAKEN: "FAILED", FAILED: "FAILED", REFUSED: "FAILED", BEGUN_AGAIN: "ALONE"}),
    ("FAILED_ALONE", {TAKEN: "FAILED", FAILED: "FAILED_ALONE", REFUSED: "REFUSED", BEGUN_AGAIN: "ALONE"}),
    ("REFUSED", {FAILED: "REFUSED", BEGUN_AGAIN: "ALONE"}),
]


@pytest.mark.parametrize("event", SendingEvent, ids=lambda event: event.name.lower())
@pytest.mark.parametrize(("before", "row"), ROWS, ids=[before.lower() for before, _ in ROWS])
def test_a_state_becomes_what_its_row_says(
    before: str, row: dict[SendingEvent, str], event: SendingEvent
) -> None:
    sending = MADE[SendingState[before]]()
    assert sending.state is SendingState[before]
    if event in row:
        HAPPENS[event](sending)
        assert sending.state is SendingState[row[event]]
    else:
        with pytest.raises(TransitionError):
            HAPPENS[event](sending)


def test_no_row_is_missing() -> None:
    assert {SendingState[before] for before, _ in ROWS} == set(SendingState)
    assert len(TRANSITIONS) == sum(len(row) for _, row in ROWS)


@pytest.mark.parametrize("state", MADE)
def test_a_carrier_that_broke_counts_as_a_record_that_failed(state: SendingState) -> None:
    sending = MADE[state]()
    sending.broken()
    assert sending.state is TRANSITIONS[state, FAILED]
    assert sending.failed


@pytest.mark.parametrize("made", [failed, failed_alone, refused])
def test_once_one_failed_nothing_is_sent_before_sending_begins_again(made: Callable[[], Sending]) -> None:
    sending = made()
    assert sending.failed
    assert sending.next(END) is None
    left_out = sending.begin_again()
    assert not sending.failed
    assert send(sending, END) == [0 if left_out is None else 1], "one alone"


def test_no_more_are_in_flight_than_the_window_has_room_for() -> None:
    sending = Sending(5, window=2)
    assert send(sending, END) == [5, 6]
    sending.answered(5, Answer.TAKEN)
    assert send(sending, END) == [7]


def test_nothing_is_sent_at_the_end() -> None:
    sending = Sending(END - 1)
    assert (sending.next(END), sending.next(END - 1)) == (END - 1, None)
    assert send(sending, 2) == [END - 1]
    assert sending.next(END) is None


def test_an_answer_is_to_come_as_long_as_a_record_is_in_flight() -> None:
    sending = Sending(0)
    assert not sending.waits
    send(sending, 2)
    sending.answered(1, Answer.TAKEN)
    assert sending.waits
    sending.answered(0, Answer.TAKEN)
    assert not sending.waits


def test_what_the_carrier_has_no_room_for_is_next_again() -> None:
    sending = flowing()
    (index,) = send(sending)
    sending.held_back(index)
    assert sending.next(END) == index
    for one in (0, 1, 2):
        sending.answered(one, Answer.TAKEN)
    assert not sending.waits


def test_each_record_taken_makes_room_for_one_more_up_to_the_window() -> None:
    sending = Sending(0, window=3)
    sending.broken()
    sending.begin_again()
    in_flight = send(sending, END)
    for room in (2, 3, 3):
        sending.answered(in_flight.pop(0), Answer.TAKEN)
        in_flight += send(sending, END)
        assert len(in_flight) == room


def test_sending_begins_again_with_the_oldest_that_was_not_taken_and_passes_over_those_that_were() -> None:
    sending = Sending(0)
    send(sending, 5)
    for index in (0, 2, 3):
        sending.answered(index, Answer.TAKEN)
    assert sending.settle() == range(1)
    sending.answered(1, Answer.FAILED)
    sending.begin_again()
    assert not sending.waits
    assert send(sending, END) == [1]
    sending.answered(1, Answer.TAKEN)
    assert send(sending, END) == [4, 5]


def test_records_settle_in_order_once_all_before_them_are_done_with() -> None:
    sending = Sending(7)
    send(sending, 4)
    sending.answered(8, Answer.TAKEN)
    assert (sending.settle(), sending.first) == (range(7, 7), 7)
    sending.answered(7, Answer.TAKEN)
    assert (sending.settle(), sending.first) == (range(7, 9), 9)
    assert sending.settle() == range(9, 9)


def test_what_cannot_be_sent_is_passed_over_and_settles() -> None:
    sending = Sending(0)
    sending.leave_out(0)
    assert send(sending) == [1]
    assert sending.settle() == range(1)


def test_a_record_refused_alone_is_left_out_and_the_next_one_is_alone() -> None:
    sending = refused()
    assert sending.begin_again() == 0
    assert sending.settle() == range(1)
    assert send(sending, END) == [1]


def test_a_refusal_that_comes_after_the_carrier_broke_still_counts() -> None:
    sending = failed_alone()
    sending.answered(0, Answer.REFUSED)
    assert sending.begin_again() == 0


def test_a_refusal_among_others_is_no_reason_to_leave_a_record_out() -> None:
    sending = flowing()
    sending.answered(1, Answer.REFUSED)
    assert sending.begin_again() is None
    sending.broken()
    assert sending.begin_again() is None, "nor is it later, for another record alone"


@given(st.integers(1, 30), st.integers(1, 5), st.sets(st.integers(0, 29)), st.integers(0, 2**32))
def test_whatever_happens_records_are_first_taken_in_order_and_only_the_refused_are_left_out(
    count: int, window: int, unwanted: set[int], seed: int
) -> None:
    """A carrier that keeps the order fails at times, with all behind, and keeps some answers back."""
    chance = random.Random(seed)
    sending = Sending(0, window)
    arrived: list[int] = []
    left_out: list[int] = []
    while sending.first < count:
        in_flight: list[int] = []
        while (index := sending.next(count)) is not None:
            sending.sent(index)
            in_flight.append(index)
        for index in in_flight:
            if sending.failed:
                sending.answered(index, Answer.FAILED)
            elif index in unwanted:
                sending.answered(index, Answer.REFUSED)
            elif chance.random() < 0.2:
                sending.answered(index, Answer.FAILED)
            else:
                arrived.append(index)
                sending.answered(index, Answer.FAILED if chance.random() < 0.1 else Answer.TAKEN)
        if sending.failed and (gone := sending.begin_again()) is not None:
            left_out.append(gone)
        sending.settle()
    assert left_out == sorted(unwanted & set(range(count)))
    assert list(dict.fromkeys(arrived)) == [index for index in range(count) if index not in unwanted]
