"""A state moves where its table says, and nothing else can happen to it."""

from __future__ import annotations

from enum import Enum, auto

import pytest

from producer.transitions import TransitionError, next_state


class Door(Enum):
    OPEN = auto()
    SHUT = auto()


class Push(Enum):
    IN = auto()
    OUT = auto()


TABLE = {(Door.OPEN, Push.IN): Door.SHUT, (Door.SHUT, Push.OUT): Door.OPEN}


def test_a_state_moves_where_the_table_says() -> None:
    assert next_state(TABLE, Door.OPEN, Push.IN) is Door.SHUT
    assert next_state(TABLE, Door.SHUT, Push.OUT) is Door.OPEN


def test_what_the_table_does_not_know_is_an_error_that_names_both() -> None:
    with pytest.raises(TransitionError, match=r"Push\.IN.* cannot happen in .*Door\.SHUT"):
        next_state(TABLE, Door.SHUT, Push.IN)
