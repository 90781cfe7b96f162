"""What LMCache's coordinator refuses, ours refuses alike: the same status, the same shape, pointing the
same way.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from producer.wire import encode_rows
from tests.interop.answers import alike
from tests.interop.conftest import Ours
from tests.interop.peers import PeerCoordinator
from tests.interop.story import story

pytestmark = pytest.mark.needs("peer")

KEY = {"chunk_hash_hex": "ab" * 32, "model_name": "model-a", "kv_rank": 1 << 24}
BATCH = {
    "instance_id": "server-a",
    "incarnation": 1,
    "seq": 1,
    "event_type": "store",
    "tier": "l1",
    "backend": "dram",
    "entries": [{"key": KEY, "size_bytes": 1, "token_ids": [1, 2, 3, 4], "token_offset": 0}],
}


def changed(**fields: Any) -> dict[str, Any]:
    return {"batches": [{**BATCH, **fields}]}


def entry(**fields: Any) -> dict[str, Any]:
    return changed(entries=[{"key": KEY, **fields}])


def key(**fields: Any) -> dict[str, Any]:
    return changed(entries=[{"key": {**KEY, **fields}}])


def without(name: str) -> dict[str, Any]:
    return {"batches": [{field: value for field, value in BATCH.items() if field != name}]}


BAD_EVENTS: dict[str, Any] = {
    "no instance": without("instance_id"),
    "no incarnation": without("incarnation"),
    "no seq": without("seq"),
    "no event type": without("event_type"),
    "no tier": without("tier"),
    "no backend": without("backend"),
    "empty instance": changed(instance_id=""),
    "empty backend": changed(backend=""),
    "negative incarnation": changed(incarnation=-1),
    "seq 0": changed(seq=0),
    "seq as text": changed(seq="one"),
    "unknown event type": changed(event_type="stored"),
    "tier all": changed(tier="all"),
    "negative ts": changed(ts=-1.0),
    "entries as an object": changed(entries={}),
    "entries null": changed(entries=None),
    "config with entries": changed(event_type="config"),
    "negative capacity": changed(event_type="config", entries=[], capacity_bytes=-1),
    "negative revision": changed(event_type="config", entries=[], capacity_revision=-1),
    "entry without key": changed(entries=[{"size_bytes": 1}]),
    "negative size": entry(size_bytes=-1),
    "size as a fraction": entry(size_bytes=1.5),
    "offset below unknown": entry(token_offset=-2),
    "tokens as text": entry(token_ids="1234"),
    "a token as text": entry(token_ids=[1, "x"]),
    "hash not hex": key(chunk_hash_hex="zz"),
    "hash of odd length": key(chunk_hash_hex="abc"),
    "hash as a number": key(chunk_hash_hex=12),
    "model with @": key(model_name="a@b"),
    "salt with a slash": key(cache_salt="a/b"),
    "salt too long": key(cache_salt="s" * 129),
    "negative group": key(object_group_id=-1),
    "rank as text": key(kv_rank="first"),
    "key as text": changed(entries=[{"key": "ab"}]),
    "batches as an object": {"batches": {}},
    "batch as a number": {"batches": [1]},
    "a list": [],
    "a number": 7,
    "null": None,
}
BAD_LOOKUPS: dict[str, Any] = {
    "neither form": {},
    "both forms": {"keys": [KEY], "token_ids": [1], "model_name": "m"},
    "tokens without model": {"token_ids": [1, 2, 3, 4]},
    "world size 0": {"token_ids": [1, 2, 3, 4], "model_name": "m", "world_size": 0},
    "world size as text": {"token_ids": [1, 2, 3, 4], "model_name": "m", "world_size": "two"},
    "hash not hex": {"keys": [{**KEY, "chunk_hash_hex": "xy"}]},
    "key without rank": {"keys": [{"chunk_hash_hex": "ab", "model_name": "m"}]},
    "key with a bad salt": {"keys": [{**KEY, "cache_salt": "a\\b"}]},
    "model with @ and tokens": {"token_ids": [1, 2, 3, 4], "model_name": "a@b"},
    "salt with NUL and tokens": {"token_ids": [1, 2, 3, 4], "model_name": "m", "cache_salt": "\0"},
    "too many tokens": {"token_ids": [1] * 1_000_001, "model_name": "m"},
    "keys as an object": {"keys": {}},
    "a token as text": {"token_ids": ["x"], "model_name": "m"},
    "a list": [],
}
BAD_BLEND_LOOKUPS: dict[str, Any] = {
    "not base64": {"tokens_b64": "!!!!", "model_name": "m"},
    "half a token": {"tokens_b64": "AAA=", "model_name": "m"},
    "no model": {"tokens_b64": "AAAAAA=="},
    "world size 0": {"tokens_b64": "AAAAAA==", "model_name": "m", "world_size": 0},
    "tokens as a list": {"tokens_b64": [1], "model_name": "m"},
    "model as a number": {"tokens_b64": "AAAAAA==", "model_name": 3},
    "text": "AAAA",
}
BAD_BYTES = {
    "nothing": b"",
    "half a document": b'{"batches": [',
    "not JSON": b"batches=1",
}
BAD_LISTINGS: list[dict[str, Any]] = [
    {"tier": "l3"},
    {"offset": -1},
    {"offset": "x"},
    {"limit": 0},
    {"limit": 10_001},
    {"limit": "many"},
]
# Left out, for LMCache takes what no emitter sends: numbers spelt as text in events, negative token ids. And
# it answers bytes that are no UTF-8 with 400, ours with 422 where they stand in a field that is read.
GOOD_BUT_ODD: dict[str, tuple[str, Any]] = {
    "no batches": ("/events", {}),
    "unknown fields": ("/events", {**changed(colour="red"), "more": [1]}),
    "a token beyond uint32": ("/events", entry(token_ids=[1, 2, 3, 2**32], token_offset=0)),
    "access without backend": ("/events", changed(event_type="access", backend="")),
    "blend without tokens": ("/directory/blend-lookup", {}),
    "blend with a model of @": ("/directory/blend-lookup", {"tokens_b64": "AAAAAA==", "model_name": "a@b"}),
    "less than a chunk": ("/directory/lookup", {"token_ids": [1], "model_name": "m"}),
    "hash in upper case": ("/directory/lookup", {"keys": [{**KEY, "chunk_hash_hex": "AB" * 32}]}),
    "world size as text": ("/directory/lookup", {"token_ids": [1] * 4, "model_name": "m", "world_size": "2"}),
}


@pytest.mark.parametrize("what", BAD_EVENTS)
def test_bad_events_are_refused_alike(peer: PeerCoordinator, ours: Ours, what: str) -> None:
    refused_alike(peer, ours, "/events", json.dumps(BAD_EVENTS[what]).encode())


@pytest.mark.parametrize("what", BAD_LOOKUPS)
def test_bad_lookups_are_refused_alike(peer: PeerCoordinator, ours: Ours, what: str) -> None:
    refused_alike(peer, ours, "/directory/lookup", json.dumps(BAD_LOOKUPS[what]).encode())


@pytest.mark.parametrize("what", BAD_BLEND_LOOKUPS)
def test_bad_blend_lookups_are_refused_alike(peer: PeerCoordinator, ours: Ours, what: str) -> None:
    refused_alike(peer, ours, "/directory/blend-lookup", json.dumps(BAD_BLEND_LOOKUPS[what]).encode())


@pytest.mark.parametrize("what", BAD_BYTES)
@pytest.mark.parametrize("path", ["/events", "/directory/lookup", "/directory/blend-lookup"])
def test_what_is_no_json_is_refused_alike(peer: PeerCoordinator, ours: Ours, path: str, what: str) -> None:
    refused_alike(peer, ours, path, BAD_BYTES[what])


@pytest.mark.parametrize("query", BAD_LISTINGS, ids=str)
def test_bad_listings_are_refused_alike(peer: PeerCoordinator, ours: Ours, query: dict[str, Any]) -> None:
    with ours() as us:
        alike(us.get("/directory/keys", **query), peer.get("/directory/keys", **query))


@pytest.mark.parametrize("what", GOOD_BUT_ODD)
def test_what_is_odd_but_good_is_taken_alike(peer: PeerCoordinator, ours: Ours, what: str) -> None:
    path, body = GOOD_BUT_ODD[what]
    peer.fresh()
    with ours() as us:
        answer = us.post(path, body)
        assert answer == peer.post(path, body)
        assert answer.status == 200


def test_one_bad_entry_refuses_the_whole_request(peer: PeerCoordinator, ours: Ours) -> None:
    good = story().batches
    body = json.loads(encode_rows(good))
    body["batches"][-1]["entries"][-1]["key"]["chunk_hash_hex"] = "xyz"
    peer.fresh()
    with ours() as us:
        for coordinator in (us, peer):
            assert coordinator.post("/events", body).status == 422
            assert coordinator.send("/events", encode_rows(good)).body["applied"] == len(good)


def refused_alike(peer: PeerCoordinator, ours: Ours, path: str, body: bytes) -> None:
    with ours() as us:
        alike(us.send(path, body), peer.send(path, body))
