from __future__ import annotations

import time
from typing import Any

import pytest

from api.bodies import MAX_REGISTRATION_BYTES
from api.client import ServerError
from producer.events import CacheEventBatch, EventType, Tier
from tests.api.serving import Serving, entries_of, serving, store, tokens
from tests.waiting import wait_for

SEQUENCE = tokens(1, 2, 3, 4)
ODD_ID = "rack/7 ü?#%\n/heartbeat"


def metric(server: Serving, name: str) -> str:
    lines = server.client.metrics().splitlines()
    return next(line.split()[-1] for line in lines if line.startswith(f"blendstream_{name} "))


def test_a_server_registers_and_is_listed_as_it_described_itself(server: Serving) -> None:
    before = time.time()
    body = {
        "instance_id": " a ",
        "ip": " 10.0.0.1\n",
        "http_port": 8000,
        "metadata": {"rack": "7"},
        "p2p_advertised_url": "tcp://10.0.0.1:7000 ",
        "mq_port": 5555,
        "version": "a field that nobody knows",
    }
    answer = server.http.post("/instances", json=body)
    assert (answer.status_code, answer.json()) == (200, {"instance_id": "a", "re_registered": False})
    (listed,) = server.http.get("/instances").json()["instances"]
    assert before <= listed.pop("registration_time") <= time.time()
    assert listed == {
        "instance_id": "a",
        "ip": "10.0.0.1",
        "http_port": 8000,
        "metadata": {"rack": "7"},
        "p2p_advertised_url": "tcp://10.0.0.1:7000",
        "mq_port": 5555,
    }


def test_registering_again_replaces_the_entry_and_says_so(server: Serving) -> None:
    assert not server.client.register("10.0.0.1", 8000, instance_id="a").re_registered
    assert server.client.register("10.0.0.2", 8001, instance_id="a").re_registered
    (listed,) = server.client.instances()
    assert (listed.ip, listed.http_port) == ("10.0.0.2", 8001)


def test_a_server_without_an_id_is_given_one_of_its_own(server: Serving) -> None:
    first = server.http.post("/instances", json={"ip": "h", "http_port": 1, "instance_id": "  "}).json()
    second = server.client.register("h", 1)
    assert first["instance_id"].startswith("mp-")
    assert first["instance_id"] != second.instance_id
    assert server.client.heartbeat(second.instance_id)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ip": None}, "ip"),
        ({"ip": "  "}, "ip"),
        ({"ip": 7}, "ip"),
        ({"http_port": 0}, "http_port"),
        ({"http_port": 65_536}, "http_port"),
        ({"http_port": 10**400}, "http_port"),
        ({"http_port": "http"}, "http_port"),
        ({"mq_port": -1}, "mq_port"),
        ({"metadata": {"rack": 7}}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"instance_id": 7}, "instance_id"),
    ],
    ids=str,
)
def test_a_malformed_registration_is_refused_by_its_field(
    server: Serving, change: dict[str, Any], field: str
) -> None:
    answer = server.http.post("/instances", json={"ip": "h", "http_port": 1, **change})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][:2] == ["body", field]
    assert server.client.instances() == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"ip":"h"}', b'{"ip":"\\ud800","http_port":1}', b"\xff"]
)
def test_what_is_no_registration_is_refused(server: Serving, body: bytes) -> None:
    assert server.http.post("/instances", content=body).status_code == 422


def test_a_registration_of_any_size_is_not_kept(server: Serving) -> None:
    metadata = {"notes": "x" * MAX_REGISTRATION_BYTES}
    with pytest.raises(ServerError, match="larger than") as refused:
        server.client.register("h", 1, metadata=metadata)
    assert refused.value.status == 413


def test_a_heartbeat_is_answered_by_whether_the_server_has_to_register(server: Serving) -> None:
    unknown = server.http.put("/instances/a/heartbeat")
    assert (unknown.status_code, unknown.json()) == (404, {"error": "unknown instance a; re-register"})
    assert not server.client.heartbeat("a")
    server.client.register("h", 1, instance_id="a")
    known = server.http.put("/instances/a/heartbeat")
    assert (known.status_code, known.json()) == (200, {"instance_id": "a"})


def test_a_departed_server_is_not_listed_and_has_to_register(server: Serving) -> None:
    server.client.register("h", 1, instance_id="a")
    server.emit(store(entries_of(SEQUENCE)), store(entries_of(SEQUENCE), 2, tier=Tier.L2, backend="fs"))
    server.client.depart("a")
    assert server.client.instances() == []
    assert not server.client.heartbeat("a")
    stats = server.client.stats()
    assert (stats.l1_count, stats.l2_count) == (0, 1)


def test_an_instance_id_may_hold_slashes_and_any_character(server: Serving) -> None:
    server.client.register("h", 1, instance_id=ODD_ID)
    assert server.client.heartbeat(ODD_ID)
    assert server.client.usage(ODD_ID).registered
    server.client.depart(ODD_ID)
    assert server.client.instances() == []


def test_a_silent_server_is_given_up_with_what_was_in_its_memory() -> None:
    with serving(instance_timeout=0.2, health_check_interval=0.05) as server:
        server.emit(store(entries_of(SEQUENCE)), store([], instance_id="unregistered"))
        server.client.register("h", 1, instance_id="a")
        wait_for(lambda: server.client.instances() == [])
        wait_for(lambda: server.client.stats().num_keys == 0)
        assert [stream.instance_id for stream in server.client.streams()] == ["unregistered"]
        assert not server.client.heartbeat("a")
        assert metric(server, "instance_timeouts_total") == "1.0"


def test_a_server_that_is_heard_from_stays_however_long() -> None:
    with serving(instance_timeout=2.0, health_check_interval=0.05) as server:
        server.client.register("h", 1, instance_id="beating")
        server.client.register("h", 1, instance_id="silent")

        def silent_gone() -> bool:
            assert server.client.heartbeat("beating")
            return len(server.client.instances()) == 1

        wait_for(silent_gone)
        assert server.client.heartbeat("beating")


def test_a_pause_of_zero_between_health_checks_means_none() -> None:
    with serving(instance_timeout=0.001, health_check_interval=0) as server:
        server.client.register("h", 1, instance_id="a")
        with serving(instance_timeout=0.001, health_check_interval=0.05) as other:
            other.client.register("h", 1, instance_id="a")
            wait_for(lambda: other.client.instances() == [])
        assert server.client.heartbeat("a")


def test_registered_servers_are_counted(server: Serving) -> None:
    assert metric(server, "registered_instances") == "0.0"
    server.client.register("h", 1)
    server.client.register("h", 1)
    assert metric(server, "registered_instances") == "2.0"


def test_usage_is_what_is_held_of_what_was_declared(server: Serving) -> None:
    server.emit(
        store(entries_of(SEQUENCE)),
        store(entries_of(SEQUENCE), 2, tier=Tier.L2, backend="s3", shared=True),
        CacheEventBatch("a", 1, 3, EventType.CONFIG, Tier.L1, "dram", capacity_bytes=28, capacity_revision=1),
    )
    server.client.register("h", 1, instance_id="b")
    answer = server.http.get("/instances/usage")
    assert answer.json() == {
        "instances": [
            {
                "instance_id": "a",
                "registered": False,
                "declared_capacity": True,
                "modules": [
                    {
                        "tier": "l1",
                        "backend": "dram",
                        "shared": False,
                        "used_bytes": 7,
                        "capacity_bytes": 28,
                        "usage_ratio": 0.25,
                    }
                ],
            },
            {"instance_id": "b", "registered": True, "declared_capacity": False, "modules": []},
        ],
        "shared_modules": [
            {
                "tier": "l2",
                "backend": "s3",
                "shared": True,
                "used_bytes": 7,
                "capacity_bytes": 0,
                "usage_ratio": None,
            }
        ],
    }
    assert server.http.get("/instances/a/usage").json() == answer.json()["instances"][0]
    fleet = server.client.fleet_usage()
    assert fleet.instances == [server.client.usage("a"), server.client.usage("b")]
    assert fleet.shared_modules[0].used_bytes == 7


def test_the_usage_of_an_unknown_server_is_not_found(server: Serving) -> None:
    answer = server.http.get("/instances/nobody/usage")
    assert (answer.status_code, answer.json()) == (404, {"detail": "unknown instance 'nobody'"})
