"""LMCache's blend client gets from `blendstream serve` what it gets from its own coordinator."""

from __future__ import annotations

import pytest

from producer.wire import encode_columns
from tests.interop import answers, fleet
from tests.interop.peers import PeerCoordinator, our_coordinator, run_peer
from tests.interop.story import story

pytestmark = pytest.mark.needs("peer")

PROMPTS = [
    fleet.tokens_of([2, 0, 1]),
    [5, *fleet.tokens_of([0]), 6, 6, *fleet.tokens_of([0, 1])],
    fleet.tokens_of([3]),
    [],
]


def test_the_blend_client_finds_the_same_chunks(peer: PeerCoordinator, peer_python: str) -> None:
    peer.fresh()
    answers.deliver(peer, story())
    queries = [
        {"tokens": prompt, **answers.scope(namespace)} for prompt in PROMPTS for namespace in fleet.NAMESPACES
    ]
    with our_coordinator(fleet.CHUNK_SIZE) as (us, url):
        assert us.send("/events", encode_columns(story().batches)).status == 200
        found = run_peer(peer_python, "blend_lookup.py", {"url": url, "queries": queries})
    expected = [
        [
            [match["chunk_hash"], match["old_st"], match["cur_st"]]
            for match in answers.matches(peer, prompt, namespace)
        ]
        for prompt in PROMPTS
        for namespace in fleet.NAMESPACES
    ]
    assert found == expected
    assert any(expected)
