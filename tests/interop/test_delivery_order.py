"""Batches that arrive late, twice and shuffled end in the state that the same batches in order end in."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.interop import answers, fleet
from tests.interop.conftest import Ours
from tests.interop.peers import Coordinator

MANY = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
PROMPTS = [[token for document in fleet.DOCUMENTS for token in [*document, 7]], *answers.TOKEN_SEQUENCES]


@MANY
@given(st.data())
def test_a_bad_delivery_ends_in_the_same_placements_and_knows_no_less(
    ours: Ours, data: st.DataObject
) -> None:
    history = data.draw(fleet.complete_histories(every_store_has_tokens=False))
    delivery, streams_in_order = data.draw(fleet.delivered_badly(history))
    with ours() as told, ours() as late, ours() as in_turns:
        answers.deliver(told, history)
        answers.deliver(late, delivery)
        answers.deliver(in_turns, streams_in_order)
        found, least = answers.placements(late), answers.placements(in_turns)
        assert places(found) == places(answers.placements(told))
        assert known_tokens(least).items() <= known_tokens(found).items()
        for prompt in PROMPTS:
            for namespace in fleet.NAMESPACES:
                assert match_positions(in_turns, prompt, namespace) <= match_positions(
                    late, prompt, namespace
                )
        assert gaps(late) == []


@MANY
@given(st.data())
def test_a_bad_delivery_ends_equal_where_every_store_carries_its_tokens(
    ours: Ours, data: st.DataObject
) -> None:
    history = data.draw(fleet.complete_histories(every_store_has_tokens=True))
    delivery, _ = data.draw(fleet.delivered_badly(history))
    with ours() as told, ours() as late:
        answers.deliver(told, history)
        answers.deliver(late, delivery)
        expected, found = answers.placements(told), answers.placements(late)
        assert places(found) == places(expected)
        assert known_tokens(found) == known_tokens(expected)
        assert answers.stats(late) == answers.stats(told)
        for prompt in PROMPTS:
            for namespace in fleet.NAMESPACES:
                assert match_positions(late, prompt, namespace) == match_positions(told, prompt, namespace)
        assert gaps(late) == []


def places(answered: dict[Any, Any]) -> dict[Any, Any]:
    return {key: result["placements"] for key, result in answered.items()}


def known_tokens(answered: dict[Any, Any]) -> dict[Any, tuple[int, ...]]:
    """The tokens of the keys that are held somewhere, where known."""
    return {
        key: tuple(result["token_ids"])
        for key, result in answered.items()
        if result["placements"] and result["token_ids"]
    }


def match_positions(coordinator: Coordinator, prompt: list[int], namespace: Any) -> set[int]:
    return {match["cur_st"] for match in answers.matches(coordinator, prompt, namespace)}


def gaps(coordinator: Coordinator) -> list[Any]:
    """The streams that lack a batch, or say so."""
    streams = coordinator.get("/streams").body["streams"]
    return [stream for stream in streams if stream["gap_detected"] or stream["missing"] or stream["lost"]]
