from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from api.client import ServerError
from producer.events import CacheEventBatch, EventType, Tier
from tests.api.serving import Serving, entries_of, serving, store, tokens

SEQUENCE = tokens(1, 2, 3, 4)
ODD_ID = "rack/7 ü?#%\n/accept-loss"


def test_a_stream_is_shown_with_what_it_lacks(server: Serving) -> None:
    server.emit(store([], 7))
    (stream,) = json.loads(server.http.get("/streams").content)["streams"]
    assert stream == {
        "instance_id": "a",
        "incarnation": 1,
        "epoch": 1,
        "last_seq": 7,
        "gap_detected": True,
        "conflict": False,
        "missing": [],
        "lost": [{"first": 1, "last": 6, "incarnation": 1, "reason": "no_log"}],
        "replay": None,
        "partition": None,
        "offset": None,
        "last_event_ts": 1.5,
    }
    assert list(stream) == list(json.loads(server.http.get("/streams/a").content))


def test_streams_are_narrowed_by_whether_they_have_a_gap(server: Serving) -> None:
    server.emit(store([], 2, instance_id="holed"), store([], 1, instance_id="whole"))
    assert [stream.instance_id for stream in server.client.streams()] == ["holed", "whole"]
    assert [stream.instance_id for stream in server.client.streams(gap=True)] == ["holed"]
    assert [stream.instance_id for stream in server.client.streams(gap=False)] == ["whole"]
    assert server.http.get("/streams?gap=maybe").status_code == 422


def test_a_late_batch_clears_the_gap(server: Serving) -> None:
    server.emit(store([], 2))
    assert server.client.stream("a").gap_detected
    server.emit(store([], 1))
    assert not server.client.stream("a").gap_detected


def test_an_operator_accepts_part_of_a_loss_or_all_of_it(server: Serving) -> None:
    server.emit(store([], 10))
    part = server.client.accept_loss("a", incarnation=1, first=1, last=4)
    assert [(lost.first, lost.last) for lost in part.lost] == [(5, 9)]
    assert part.gap_detected
    assert not server.client.accept_loss("a").gap_detected


@pytest.mark.parametrize(
    "body",
    [b'{"first":"x"}', b'{"first":-1}', b'{"last":9223372036854775808}', b'{"first":3,"last":2}', b"[", b"7"],
)
def test_a_malformed_range_is_refused(server: Serving, body: bytes) -> None:
    server.emit(store([], 10))
    for verb in ("accept-loss", "replay"):
        assert server.http.post(f"/streams/a/{verb}", content=body).status_code == 422
    assert server.client.stream("a").gap_detected


def test_where_events_are_pushed_there_is_nothing_to_replay(server: Serving) -> None:
    server.emit(store([], 10))
    with pytest.raises(ServerError, match="there is no log to search") as refused:
        server.client.replay("a", first=1)
    assert refused.value.status == 409


def test_a_reset_forgets_the_stream_and_lets_any_incarnation_in(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE), incarnation=9))
    server.client.reset("a")
    assert server.client.streams() == []
    assert server.client.stats().num_keys == 0
    assert server.emit(store([], incarnation=3)) == {"applied": 1, "duplicates": 0, "stale": 0}


def test_a_departure_takes_the_instances_memory_and_leaves_what_outlives_it(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE)), store(entries_of(SEQUENCE), 2, tier=Tier.L2, backend="fs"))
    for _ in range(2):
        assert server.http.delete("/instances/a").status_code == 204
    assert server.client.streams() == []
    stats = server.client.stats()
    assert (stats.l1_count, stats.l2_count) == (0, 1)


def test_an_instance_id_may_hold_slashes_and_any_character(server: Serving) -> None:
    server.emit(store([], 2, instance_id=ODD_ID))
    assert server.client.stream(ODD_ID).instance_id == ODD_ID
    assert not server.client.accept_loss(ODD_ID).gap_detected
    server.client.reset(ODD_ID)
    server.client.depart(ODD_ID)
    assert server.client.streams() == []


def test_an_unknown_instance_answers_404_wherever_one_must_be_known(server: Serving) -> None:
    for request in (
        lambda: server.client.stream("nobody"),
        lambda: server.client.accept_loss("nobody"),
        lambda: server.client.replay("nobody"),
        lambda: server.client.reset("nobody"),
    ):
        with pytest.raises(ServerError, match="unknown instance 'nobody'") as refused:
            request()
        assert refused.value.status == 404


def test_an_unknown_path_and_a_wrong_method_are_answered_in_json(server: Serving) -> None:
    missing = server.http.get("/nope")
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    wrong = server.http.get("/events")
    assert (wrong.status_code, wrong.json()) == (405, {"detail": "Method Not Allowed"})
    assert wrong.headers["allow"] == "POST"


def test_a_pushed_server_is_healthy_and_ready_at_once(server: Serving) -> None:
    assert server.http.get("/healthz").content == b'{"status":"healthy"}'
    ready = server.http.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "reasons": [], "warnings": []})


def test_without_a_broker_the_server_lives_answers_and_says_why_it_is_not_ready() -> None:
    with serving(event_transport="kafka", kafka_bootstrap_servers="127.0.0.1:1") as server:
        assert server.http.get("/healthz").status_code == 200
        answer = server.http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["reasons"]
        assert server.client.not_ready()
        assert server.client.stats().num_keys == 0
        assert server.http.delete("/instances/a").status_code == 204


def test_a_full_state_is_said_and_keeps_serving() -> None:
    with serving(max_chunks=64) as server:
        many = [entries_of(tokens(n, n, n, n))[0] for n in range(40_000)]
        for seq, start in enumerate(range(0, len(many), 20_000), start=1):
            server.emit(store(many[start : start + 20_000], seq))
        ready = server.http.get("/readyz")
        assert ready.status_code == 200
        assert "--max-chunks 64" in ready.json()["warnings"][0]


def test_declared_capacities_show_in_the_metrics_until_the_instance_departs(server: Serving) -> None:
    server.emit(
        CacheEventBatch("a", 1, 1, EventType.CONFIG, Tier.L1, "dram", capacity_bytes=123, capacity_revision=1)
    )
    sample = 'blendstream_instance_capacity_bytes{backend="dram",instance_id="a",tier="l1"} 123.0'
    assert sample in server.client.metrics()
    server.client.depart("a")
    assert sample not in server.client.metrics()


def test_a_heavy_request_does_not_hold_up_the_others(server: Serving) -> None:
    body = json.dumps({"token_ids": [1] * 400_000, "model_name": "m", "world_size": 2}).encode()
    heavy = threading.Thread(target=server.http.post, args=("/directory/lookup",), kwargs={"content": body})
    waits = []
    heavy.start()
    while heavy.is_alive():
        began = time.perf_counter()
        assert server.http.get("/healthz").status_code == 200
        waits.append(time.perf_counter() - began)
    heavy.join()
    assert len(waits) > 10
    assert max(waits) < 1.0


def test_many_large_bodies_at_once_are_all_answered(server: Serving) -> None:
    body = tokens(*range(1_000_000)).tobytes()

    def look_up(_: int) -> int:
        headers = {"content-type": "application/octet-stream"}
        url = "/directory/blend-lookup?model_name=m"
        return server.http.post(url, content=body, headers=headers).status_code

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(look_up, range(16))) == {200}


def test_a_large_body_that_does_not_come_is_not_waited_for(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.http.READ_TIMEOUT", 0.2)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server.address.removeprefix("unix:"))
        client.sendall(b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n{")
        client.settimeout(30)
        assert client.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_bodies_that_take_all_the_room_together_are_refused_for_now(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.http.BODIES_BYTES", 10_000)
    refused = server.http.post("/events", content=b"x" * 20_000)
    assert refused.status_code == 503
    monkeypatch.undo()
    assert server.http.post("/events", content=b"x" * 20_000).status_code == 422


@pytest.mark.parametrize(
    "accept", ["text/plain;version=x", "text/plain;version=..", "application/openmetrics-text;version=x"]
)
def test_a_scrape_that_asks_for_a_version_there_is_not_gets_the_plain_one(
    server: Serving, accept: str
) -> None:
    answer = server.http.get("/metrics", headers={"accept": accept})
    assert answer.status_code == 200
    assert b"blendstream_ready" in answer.content


def raw_answer(server: Serving, *parts: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(server.address.removeprefix("unix:"))
        received = b""
        try:
            for part in parts:
                client.sendall(part)
            while piece := client.recv(65_536):
                received += piece
        except (BrokenPipeError, ConnectionResetError):
            pass
        return received


def is_cut_off(answer: bytes) -> bool:
    """Whether the server refused: what it said may be lost where it closed on data that was still coming."""
    return answer == b"" or answer.startswith(b"HTTP/1.1 431 ")


def test_headers_without_end_are_refused(server: Serving) -> None:
    lines = [b"X-Name: " + b"y" * 1_000 + b"\r\n"] * 200
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    assert is_cut_off(raw_answer(server, head, *lines, b"\r\n"))
    assert is_cut_off(raw_answer(server, head, b"X: ", *[b"y" * 65_536] * 4, b"\r\n\r\n"))
    assert raw_answer(server, head, *lines[:20], b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_trailers_without_end_close_the_connection(server: Serving) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    trailers = [b"X: " + b"y" * 1_000 + b"\r\n"] * 20_000
    assert len(raw_answer(server, head, *trailers)) < 1_000


def test_a_head_that_does_not_come_is_not_waited_for(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.protocol.HEAD_SECONDS", 0.2)
    assert raw_answer(server, b"GET /healthz HTTP/1.1\r\nHost") == b""
    assert raw_answer(server, b"") == b""
