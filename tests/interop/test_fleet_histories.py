"""A random fleet's history, posted to LMCache's coordinator and to ours, leaves both with the same
answers.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.interop import answers, fleet
from tests.interop.conftest import Ours
from tests.interop.peers import PeerCoordinator

pytestmark = pytest.mark.needs("peer")

PROMPTS = st.lists(fleet.queries(), min_size=1, max_size=3)
MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@MANY
@given(fleet.histories(), PROMPTS)
def test_a_history_gets_equal_answers_from_both(
    peer: PeerCoordinator, ours: Ours, history: fleet.History, prompts: list[list[int]]
) -> None:
    peer.fresh()
    with ours() as us:
        assert answers.deliver(us, history) == answers.deliver(peer, history)
        assert answers.everything(us, prompts) == answers.everything(peer, prompts)


@MANY
@given(fleet.histories())
def test_l1_keys_are_counted_alike_where_no_memory_is_shared(
    peer: PeerCoordinator, ours: Ours, history: fleet.History
) -> None:
    # LMCache goes on counting a shared L1 placement for an instance whose report another one has replaced;
    # ours counts what is there, so there it is held against the listing.
    peer.fresh()
    with ours() as us:
        answers.deliver(us, history)
        answers.deliver(peer, history)
        counted = answers.l1_keys_by_instance(us)
        if not history.shares_memory:
            assert counted == answers.l1_keys_by_instance(peer)
        listed: Counter[str] = Counter()
        for key in answers.listing(us, {"tier": "l1"})[1]:
            listed.update(placement["instance_id"] for placement in key["placements"])
        assert {instance: count for instance, count in counted.items() if count} == listed
