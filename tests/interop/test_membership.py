"""Membership as LMCache has it: the answers of both coordinators, and LMCache's registrar against ours."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier
from producer.wire import encode_rows
from tests.interop import fleet
from tests.interop.answers import alike
from tests.interop.conftest import Ours
from tests.interop.peers import SCRIPTS, Answer, Coordinator, PeerCoordinator, our_coordinator, process
from tests.waiting import wait_for

pytestmark = pytest.mark.needs("peer")

SERVER = {"instance_id": "a", "ip": "10.0.0.1", "http_port": 8000}
GOOD: dict[str, dict[str, Any]] = {
    "the least": {"ip": "h", "http_port": 1, "instance_id": "a"},
    "everything": {
        **SERVER,
        "metadata": {"rack": "7", "": ""},
        "p2p_advertised_url": "tcp://h:1",
        "mq_port": 9,
    },
    "spaces around": {"instance_id": "\t a b ", "ip": " h\n", "http_port": 1, "p2p_advertised_url": " u "},
    "unknown fields": {**SERVER, "colour": "red", "metadata": {}},
    "ports as text": {**SERVER, "http_port": "8000", "mq_port": "7"},
    "ports as whole fractions": {**SERVER, "http_port": 8000.0},
    "a slash in the id": {**SERVER, "instance_id": "rack/7"},
    "not ASCII": {**SERVER, "instance_id": "ü☃", "ip": "hôte"},
}
BAD: dict[str, Any] = {
    "no address": {"http_port": 1},
    "blank address": {"ip": " ", "http_port": 1},
    "address as a number": {"ip": 7, "http_port": 1},
    "no port": {"ip": "h"},
    "port 0": {"ip": "h", "http_port": 0},
    "port too large": {"ip": "h", "http_port": 65_536},
    "port as a word": {"ip": "h", "http_port": "http"},
    "half a port": {"ip": "h", "http_port": 1.5},
    "negative queue port": {**SERVER, "mq_port": -1},
    "id as a number": {**SERVER, "instance_id": 7},
    "id null": {**SERVER, "instance_id": None},
    "metadata of numbers": {**SERVER, "metadata": {"rack": 7}},
    "metadata as a list": {**SERVER, "metadata": []},
    "metadata null": {**SERVER, "metadata": None},
    "a list": [],
    "text": "a",
}


@pytest.mark.parametrize("what", GOOD)
def test_a_registration_is_answered_and_listed_alike(peer: PeerCoordinator, ours: Ours, what: str) -> None:
    peer.fresh()
    with ours() as us:
        for _ in range(2):
            answer = us.post("/instances", GOOD[what])
            assert answer == peer.post("/instances", GOOD[what])
            assert answer.status == 200
        assert listed(us) == listed(peer)


@pytest.mark.parametrize("what", BAD)
def test_a_bad_registration_is_refused_alike(peer: PeerCoordinator, ours: Ours, what: str) -> None:
    body = json.dumps(BAD[what]).encode()
    with ours() as us:
        alike(us.send("/instances", body), peer.send("/instances", body))


@pytest.mark.parametrize("body", [b"", b"{"], ids=str)
def test_what_is_no_registration_is_refused_alike(peer: PeerCoordinator, ours: Ours, body: bytes) -> None:
    with ours() as us:
        alike(us.send("/instances", body), peer.send("/instances", body))


def test_both_make_up_an_id_of_the_same_form(peer: PeerCoordinator, ours: Ours) -> None:
    with ours() as us:
        for coordinator in (us, peer):
            answer = coordinator.post("/instances", {"ip": "h", "http_port": 1, "instance_id": " "})
            name, digits = answer.body["instance_id"].split("-")
            assert (name, len(bytes.fromhex(digits)), answer.body["re_registered"]) == ("mp", 16, False)


def test_heartbeats_and_departures_are_answered_alike(peer: PeerCoordinator, ours: Ours) -> None:
    peer.fresh()
    with ours() as us:
        assert life(us) == life(peer)


def test_usage_is_told_alike(peer: PeerCoordinator, ours: Ours) -> None:
    peer.fresh()
    with ours() as us:
        assert usage(us) == usage(peer)


def test_lmcaches_registrar_registers_beats_comes_back_and_leaves(peer_python: str) -> None:
    timing = ["--instance-timeout", "3", "--health-check-interval", "0.1"]
    with our_coordinator(fleet.CHUNK_SIZE, *timing) as (us, url):
        command = [peer_python, str(SCRIPTS / "registrar.py"), url, "beating", "0.1"]
        with process(command):
            wait_for(lambda: names(us) == ["beating"], 60, "LMCache's registrar registers")
            (entry,) = us.get("/instances").body["instances"]
            first = entry.pop("registration_time")
            assert first <= time.time()
            assert entry == {
                "instance_id": "beating",
                "ip": "10.0.0.1",
                "http_port": 8000,
                "metadata": {},
                "p2p_advertised_url": "tcp://10.0.0.1:7000",
                "mq_port": 5555,
            }
            us.post("/instances", {**SERVER, "instance_id": "silent"})
            wait_for(lambda: names(us) == ["beating"], what="who sends no heartbeats is given up")
            assert us.get("/instances").body["instances"][0]["registration_time"] == first
            us.delete("/instances/beating")
            wait_for(lambda: names(us) == ["beating"], what="it registers again when it is told to")
            assert us.get("/instances").body["instances"][0]["registration_time"] > first
        assert names(us) == []
        metrics = httpx.get(f"{url}/metrics").text
        assert "blendstream_instance_timeouts_total 1.0" in metrics


def names(coordinator: Coordinator) -> list[str]:
    return [entry["instance_id"] for entry in coordinator.get("/instances").body["instances"]]


def listed(coordinator: Coordinator) -> list[dict[str, Any]]:
    """Who is registered, less when that was."""
    entries: list[dict[str, Any]] = coordinator.get("/instances").body["instances"]
    for entry in entries:
        assert abs(entry.pop("registration_time") - time.time()) < 60
    return entries


def life(coordinator: Coordinator) -> list[Answer]:
    """What a server hears that registers, is heard, departs, departs again and is heard no more."""
    return [
        coordinator.put("/instances/a/heartbeat"),
        coordinator.post("/instances", SERVER),
        coordinator.put("/instances/a/heartbeat"),
        coordinator.post("/instances", {**SERVER, "ip": "10.0.0.2"}),
        coordinator.delete("/instances/a"),
        coordinator.delete("/instances/a"),
        coordinator.put("/instances/a/heartbeat"),
        coordinator.get("/instances"),
    ]


def usage(coordinator: Coordinator) -> list[Answer]:
    """What is told of a fleet in which capacities are declared, disputed, left out and exceeded."""
    key = CacheEventEntry(ObjectKey(b"\xab" * 32, "m", 1 << 24), 70)
    empty = CacheEventEntry(ObjectKey(b"\xcd" * 32, "m", 1 << 24), 0)

    def store(name: str, seq: int, tier: Tier, backend: str, *, shared: bool = False) -> CacheEventBatch:
        return CacheEventBatch(name, 1, seq, EventType.STORE, tier, backend, [key], shared=shared)

    def size(
        name: str, seq: int, tier: Tier, backend: str, capacity: int, *, shared: bool = False
    ) -> CacheEventBatch:
        return CacheEventBatch(
            *(name, 1, seq, EventType.CONFIG, tier, backend),
            shared=shared,
            capacity_bytes=capacity,
            capacity_revision=1,
        )

    batches = [
        store("b", 1, Tier.L1, "dram"),
        size("b", 2, Tier.L1, "dram", 280),
        size("b", 3, Tier.L2, "fs", 100),
        size("b", 4, Tier.L2, "pool", 1_000, shared=True),
        size("b", 5, Tier.L2, "disputed", 1_000, shared=True),
        store("a", 1, Tier.L1, "gpu"),
        store("a", 2, Tier.L1, "dram"),
        store("a", 3, Tier.L2, "pool", shared=True),
        store("a", 4, Tier.L2, "disputed", shared=True),
        size("a", 5, Tier.L1, "dram", 35),
        size("a", 6, Tier.L1, "gpu", 0),
        size("a", 7, Tier.L2, "disputed", 2_000, shared=True),
        CacheEventBatch("c", 1, 1, EventType.STORE, Tier.L1, "dram", [empty]),
        store("left", 1, Tier.L2, "fs"),
        store("left", 2, Tier.L1, "dram"),
        size("left", 3, Tier.L2, "fs", 100),
    ]
    assert coordinator.send("/events", encode_rows(batches)).body["applied"] == len(batches)
    coordinator.post("/instances", SERVER)
    coordinator.post("/instances", {**SERVER, "instance_id": "idle"})
    coordinator.delete("/instances/left")
    ids = ["a", "b", "c", "left", "idle", "nobody"]
    return [
        coordinator.get("/instances/usage"),
        *(coordinator.get(f"/instances/{name}/usage") for name in ids),
    ]
