"""Life cycles: what their tables do not know cannot happen, and every one of them can come to an end."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from processor.ingest import ranges, replay
from processor.ingest.ranges import RangeEvent, RangeState
from processor.ingest.replay import ReplayEvent, ReplayState
from producer.transitions import TransitionError, next_state

CYCLES: dict[str, tuple[Mapping[Any, Any], type[Enum], type[Enum]]] = {
    "range": (ranges.TRANSITIONS, RangeState, RangeEvent),
    "replay": (replay.TRANSITIONS, ReplayState, ReplayEvent),
}


@pytest.mark.parametrize("cycle", CYCLES)
def test_what_the_table_does_not_know_cannot_happen(cycle: str) -> None:
    table, states, events = CYCLES[cycle]
    for state in states:
        for event in events:
            if (state, event) in table:
                assert next_state(table, state, event) is table[state, event]
            else:
                with pytest.raises(TransitionError, match=f"{event.name}.*{state.name}"):
                    next_state(table, state, event)


@pytest.mark.parametrize("cycle", CYCLES)
def test_from_every_state_an_end_can_be_reached(cycle: str) -> None:
    table, states, _ = CYCLES[cycle]
    ends = set(states) - {state for state, _ in table}
    assert ends
    reaching = set(ends)
    while more := {state for (state, _), to in table.items() if to in reaching} - reaching:
        reaching |= more
    assert reaching == set(states)
