"""What LMCache's own emitters send reaches the directory of `blendstream serve`, by Kafka and by HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from api.token_hasher import TokenHasher
from producer.events import make_kv_rank
from producer.wire import encode_rows
from tests.brokers import RunningBroker
from tests.interop import answers, fleet
from tests.interop.peers import Coordinator, PeerCoordinator, our_coordinator, run_peer
from tests.interop.story import story
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("peer")

PROMPTS = [[7, *fleet.tokens_of([1, 0, 3]), 7], fleet.tokens_of([2, 2, 0])]


@pytest.mark.parametrize("topic", [1, 4], indirect=True)
def test_lmcaches_kafka_sink_fills_the_directory(
    kafka_broker: RunningBroker,
    topic: str,
    peer: PeerCoordinator,
    peer_python: str,
    request: pytest.FixtureRequest,
) -> None:
    one_partition = request.node.callspec.params["topic"] == 1
    said = everything if one_partition else all_but_what_goes_by_arrival
    told = {"sink": "kafka", "bootstrap": kafka_broker.bootstrap, "topic": topic, "batches": rows()}
    run_peer(peer_python, "publish.py", told)
    peer.fresh()
    answers.deliver(peer, story())
    with our_coordinator(fleet.CHUNK_SIZE, *kafka_flags(kafka_broker, topic)) as (us, _):
        wait_for(lambda: heard_all(us), what="every batch of the story is applied")
        assert said(us) == said(peer)


def test_lmcaches_http_sink_fills_the_directory(peer: PeerCoordinator, peer_python: str) -> None:
    peer.fresh()
    answers.deliver(peer, story())
    with our_coordinator(fleet.CHUNK_SIZE) as (us, url):
        run_peer(peer_python, "publish.py", {"sink": "http", "url": url, "batches": rows()})
        assert heard_all(us)
        assert everything(us) == everything(peer)


def test_lmcaches_subscriber_tells_the_life_of_a_cache_server(
    kafka_broker: RunningBroker, topic: str, peer_python: str
) -> None:
    tokens = fleet.tokens_of([0, 1, 2])
    digests = list(TokenHasher(fleet.CHUNK_SIZE).hashes(np.array(tokens, np.uint32)))
    chunks = [
        {"hash": digest.hex(), "tokens": tokens[start : start + fleet.CHUNK_SIZE], "offset": start}
        for digest, start in zip(digests, range(0, len(tokens), fleet.CHUNK_SIZE), strict=True)
    ]
    told = {
        "bootstrap": kafka_broker.bootstrap,
        "topic": topic,
        "instance_id": "server-a",
        "incarnation": 3,
        "chunks": chunks,
        "model": "model-a",
        "kv_rank": make_kv_rank(1, 0, 1, 0),
        "size": 4096,
    }
    run_peer(peer_python, "serve_cache.py", told)
    with our_coordinator(fleet.CHUNK_SIZE, *kafka_flags(kafka_broker, topic)) as (us, _):
        # Stores in two places, an access and a delete: four batches.
        wait_for(lambda: last_seqs(us) == {"server-a": 4}, what="the four batches are applied")
        asked = {"token_ids": tokens, "model_name": "model-a"}
        found = us.post("/directory/lookup", asked).body["results"]
        assert [backends(result) for result in found] == [["dram", "s3"], ["dram", "s3"], ["s3"]]
        assert [result["token_ids"] for result in found] == [chunk["tokens"] for chunk in chunks]
        assert [result["access_count"] for result in found] == [1, 0, 0]
        assert {p["size_bytes"] for result in found for p in result["placements"]} == {4096}
        turned = fleet.tokens_of([2, 1, 0])
        assert answers.matches(us, turned, fleet.NAMESPACES[0]) == [
            {"chunk_hash": digests[chunk].hex(), "old_st": 4 * chunk, "cur_st": 8 - 4 * chunk}
            for chunk in (2, 1, 0)
        ]


def rows() -> list[Any]:
    """The story's batches as rows."""
    batches: list[Any] = orjson.loads(encode_rows(story().batches))["batches"]
    return batches


def kafka_flags(broker: RunningBroker, topic: str) -> list[str]:
    flags = ["--event-transport", "kafka", "--kafka-topic", topic]
    return [*flags, "--kafka-bootstrap-servers", broker.bootstrap]


def heard_all(us: Coordinator) -> bool:
    expected = {batch.instance_id: batch.seq for batch in story().batches}
    return last_seqs(us) == expected


def last_seqs(us: Coordinator) -> dict[str, int]:
    answer = us.get("/streams")
    assert answer.status == 200, answer
    streams = answer.body["streams"]
    assert not [stream for stream in streams if stream["gap_detected"]]
    return {stream["instance_id"]: stream["last_seq"] for stream in streams}


def backends(result: Any) -> list[str]:
    return sorted(placement["backend"] for placement in result["placements"])


def everything(coordinator: Coordinator) -> Any:
    return answers.everything(coordinator, PROMPTS)


def all_but_what_goes_by_arrival(coordinator: Coordinator) -> Any:
    """Everything but which of several chunks with one content a match names, and how often a key was read.

    A read that arrives before the store it followed, on another partition, is of a key not yet known.
    """
    said = everything(coordinator)
    for question, answer in said.items():
        if question.startswith("blend"):
            said[question] = [match["cur_st"] for match in answer]
    for result in answers.results_in(said):
        del result["access_count"]
    return said
