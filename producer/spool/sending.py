"""What of a spool is to be sent next, and how sending goes on when a record is not taken.

Pure: no disk, no broker, no clock. Records are known by their index. They are in flight together, up to a
window, until one is not taken; then nothing is sent until sending begins again with the oldest, alone at
first. A refusal counts only there: with nothing else in its request, it can only be for the record itself.

                 taken      failed         refused     begun again
    FLOWING      FLOWING    FAILED         FAILED
    ALONE        FLOWING    FAILED_ALONE   REFUSED
    FAILED       FAILED     FAILED         FAILED      ALONE
    FAILED_ALONE FAILED     FAILED_ALONE   REFUSED     ALONE
    REFUSED                 REFUSED                    ALONE
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from producer.sinks.protocol import Answer
from producer.transitions import next_state

WINDOW: Final = 10_000
"""Records in flight at most."""


class SendingState(Enum):
    """How sending stands."""

    FLOWING = auto()
    """Records are in flight together."""
    ALONE = auto()
    """Sending has begun again, and nothing was taken since: one record at a time is in flight."""
    FAILED = auto()
    """A record was not taken; sending has to begin again."""
    FAILED_ALONE = auto()
    """So did one that was alone. The word that it is refused may come after the word that it failed."""
    REFUSED = auto()
    """A record that was alone will never be taken; sending has to begin again without it."""


class SendingEvent(Enum):
    """What happens to it."""

    TAKEN = auto()
    FAILED = auto()
    REFUSED = auto()
    BEGUN_AGAIN = auto()


TRANSITIONS: Final[Mapping[tuple[SendingState, SendingEvent], SendingState]] = {
    (SendingState.FLOWING, SendingEvent.TAKEN): SendingState.FLOWING,
    (SendingState.FLOWING, SendingEvent.FAILED): SendingState.FAILED,
    (SendingState.FLOWING, SendingEvent.REFUSED): SendingState.FAILED,
    (SendingState.ALONE, SendingEvent.TAKEN): SendingState.FLOWING,
    (SendingState.ALONE, SendingEvent.FAILED): SendingState.FAILED_ALONE,
    (SendingState.ALONE, SendingEvent.REFUSED): SendingState.REFUSED,
    (SendingState.FAILED, SendingEvent.TAKEN): SendingState.FAILED,
    (SendingState.FAILED, SendingEvent.FAILED): SendingState.FAILED,
    (SendingState.FAILED, SendingEvent.REFUSED): SendingState.FAILED,
    (SendingState.FAILED, SendingEvent.BEGUN_AGAIN): SendingState.ALONE,
    (SendingState.FAILED_ALONE, SendingEvent.TAKEN): SendingState.FAILED,
    (SendingState.FAILED_ALONE, SendingEvent.FAILED): SendingState.FAILED_ALONE,
    (SendingState.FAILED_ALONE, SendingEvent.REFUSED): SendingState.REFUSED,
    (SendingState.FAILED_ALONE, SendingEvent.BEGUN_AGAIN): SendingState.ALONE,
    (SendingState.REFUSED, SendingEvent.FAILED): SendingState.REFUSED,
    (SendingState.REFUSED, SendingEvent.BEGUN_AGAIN): SendingState.ALONE,
}

_EVENTS: Final[Mapping[Answer, SendingEvent]] = {
    Answer.TAKEN: SendingEvent.TAKEN,
    Answer.FAILED: SendingEvent.FAILED,
    Answer.REFUSED: SendingEvent.REFUSED,
}
_SENDS: Final = frozenset((SendingState.FLOWING, SendingState.ALONE))


class Sending:
    """Where sending is among the records from `first` on.

    Attributes:
        first: the oldest record that is not done with.
        state: how sending stands.
    """

    def __init__(self, first: int, window: int = WINDOW) -> None:
        self.first = first
        self.state = SendingState.FLOWING
        self._limit = self._window = window
        self._cursor = first
        self._in_flight: set[int] = set()
        self._done: set[int] = set()
        self._refused: int | None = None

    @property
    def failed(self) -> bool:
        """Whether nothing goes on until sending begins again."""
        return self.state not in _SENDS

    @property
    def waits(self) -> bool:
        """Whether an answer is to come."""
        return bool(self._in_flight)

    def next(self, end: int) -> int | None:
        """The record below `end` to be sent now; None if there is none, or none may be."""
        while self._cursor < end and self._cursor in self._done:
            self._cursor += 1
        room = len(self._in_flight) < self._window
        return self._cursor if room and self._cursor < end and not self.failed else None

    def sent(self, index: int) -> None:
        """A record, the one that `next` gave, is in flight."""
        self._in_flight.add(index)
        self._cursor = index + 1

    def held_back(self, index: int) -> None:
        """It is not, after all: the carrier had no room for it."""
        self._in_flight.discard(index)
        self._cursor = index

    def leave_out(self, index: int) -> None:
        """A record cannot be sent; it is done with."""
        self._done.add(index)

    def answered(self, index: int, answer: Answer) -> None:
        """A record in flight was taken or was not."""
        self._in_flight.discard(index)
        if answer is Answer.TAKEN:
            self._done.add(index)
            self._window = min(self._window + 1, self._limit)
        elif answer is Answer.REFUSED:
            self._refused = index
        self._happen(_EVENTS[answer])

    def broken(self) -> None:
        """The carrier takes nothing until it is reset."""
        self._happen(SendingEvent.FAILED)

    def begin_again(self) -> int | None:
        """Go back to the oldest record, once all in flight were answered for.

        Returns:
            The record that is left out from now on, if one will never be taken.
        """
        left_out = self._refused if self.state is SendingState.REFUSED else None
        self._happen(SendingEvent.BEGUN_AGAIN)
        if left_out is not None:
            self.leave_out(left_out)
        self._refused = None
        self._in_flight.clear()
        self._window = 1
        self._cursor = self.first
        return left_out

    def settle(self) -> range:
        """The oldest records, as far as they are done with; they are behind `first` from now on."""
        before = self.first
        while self.first in self._done:
            self._done.discard(self.first)
            self.first += 1
        self._cursor = max(self._cursor, self.first)
        return range(before, self.first)

    def _happen(self, event: SendingEvent) -> None:
        self.state = next_state(TRANSITIONS, self.state, event)
