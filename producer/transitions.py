"""Life cycles as tables: what a state becomes at an event, and that nothing else can happen to it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


class TransitionError(RuntimeError):
    """Something happened to a thing that cannot happen to one in its state."""


def next_state(table: Mapping[tuple[State, Event], State], state: State, event: Event) -> State:
    """The state that `event` leads to."""
    try:
        return table[state, event]
    except KeyError:
        raise TransitionError(f"{event!r} cannot happen in {state!r}") from None
