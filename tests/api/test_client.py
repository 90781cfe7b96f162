"""The client against a real server: every answer typed, every refusal in the server's own words."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from api.client import Client, ServerError, ServerUnavailable
from producer.wire import encode_columns, encode_rows
from tests.api.serving import MODEL, Serving, chunk_keys, entries_of, key, serving, store, tokens

SEQUENCE = tokens(*range(8))
"""Two chunks."""


@contextmanager
def answering(status: int, body: bytes) -> Iterator[Client]:
    """A client of a server that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with Client(f"http://127.0.0.1:{server.server_port}/") as client:
                yield client
        finally:
            server.shutdown()
            thread.join()


def test_what_was_pushed_is_found_by_key_by_tokens_and_at_any_offset(server: Serving) -> None:
    client = server.client
    pushed = client.push(encode_columns([store(entries_of(SEQUENCE))]))
    assert (pushed.applied, pushed.duplicates, pushed.stale) == (1, 0, 0)
    keys = chunk_keys(SEQUENCE)
    unknown = key(b"\x01" * 32)
    found = client.lookup([unknown, *keys])
    assert [each.key.chunk_hash_hex for each in found] == [k.chunk_hash.hex() for k in (unknown, *keys)]
    assert [[p.instance_id for p in each.placements] for each in found] == [[], ["a"], ["a"]]
    assert [each.token_ids for each in found] == [[], [0, 1, 2, 3], [4, 5, 6, 7]]
    by_tokens = client.lookup_tokens(SEQUENCE, MODEL)
    assert by_tokens.chunks == 2
    assert [each.placements for each in by_tokens.results] == [each.placements for each in found[1:]]
    query = tokens(9, *range(4, 8), 9, *range(4))
    matches = client.blend_lookup(query, MODEL)
    assert [(match.chunk_hash, match.old_st, match.cur_st) for match in matches] == [
        (keys[1].chunk_hash.hex(), 4, 1),
        (keys[0].chunk_hash.hex(), 0, 6),
    ]
    assert client.blend_lookup(query.tolist(), MODEL) == matches


@pytest.mark.parametrize("other", [{"world_size": 2}, {"cache_salt": "tenant"}])
def test_lookups_by_tokens_keep_to_their_namespace(server: Serving, other: dict[str, int | str]) -> None:
    server.emit(store(entries_of(SEQUENCE)))
    assert server.client.blend_lookup(SEQUENCE, MODEL) != []
    assert server.client.blend_lookup(SEQUENCE, MODEL, **other) == []  # type: ignore[arg-type]
    results = server.client.lookup_tokens(SEQUENCE, MODEL, **other).results  # type: ignore[arg-type]
    assert results != []
    assert not any(each.placements for each in results)


def test_looking_up_nothing_asks_nobody() -> None:
    with Client("http://127.0.0.1:9") as nobody:
        assert nobody.lookup([]) == []


def test_keys_come_in_pages_narrowed_as_asked(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE)), store(entries_of(tokens(50, 51, 52, 53)), instance_id="b"))
    client = server.client
    whole = client.keys()
    assert (whole.total, len(whole.keys)) == (3, 3)
    page = client.keys(offset=1, limit=1)
    assert (page.total, page.keys) == (3, whole.keys[1:2])
    assert [each.placements[0].instance_id for each in client.keys(instance_id="b").keys] == ["b"]
    assert client.keys(tier="l2").total == client.keys(backend="nowhere").total == 0
    assert whole.keys[0].num_tokens == 4
    stats = client.stats()
    assert (stats.num_keys, stats.l1_keys_by_instance, stats.blend.num_chunks) == (3, {"a": 2, "b": 1}, 3)


def test_streams_are_told_narrowed_and_acted_on(server: Serving) -> None:
    client = server.client
    server.emit(store(entries_of(SEQUENCE), seq=5), store([], instance_id="b"))
    assert [stream.instance_id for stream in client.streams()] == ["a", "b"]
    assert [stream.instance_id for stream in client.streams(gap=True)] == ["a"]
    assert [stream.instance_id for stream in client.streams(gap=False)] == ["b"]
    (lost,) = client.stream("a").lost
    assert (lost.first, lost.last, lost.incarnation, lost.reason) == (1, 4, 1, "no_log")
    assert [(each.first, each.last) for each in client.accept_loss("a", first=2, last=3).lost] == [
        (1, 1),
        (4, 4),
    ]
    assert [each.first for each in client.accept_loss("a", incarnation=2).lost] == [1, 4]
    assert not client.accept_loss("a").gap_detected
    client.reset("a")
    assert [stream.instance_id for stream in client.streams()] == ["b"]


def test_a_refusal_carries_the_status_and_the_server_s_words(server: Serving) -> None:
    with pytest.raises(ServerError) as caught:
        server.client.stream("nobody")
    assert caught.value.status == 404
    assert caught.value.detail in str(caught.value)
    with pytest.raises(ServerError) as caught:
        server.client.blend_lookup(SEQUENCE, MODEL, world_size=0)
    assert caught.value.status == 422
    assert "world_size" in caught.value.detail
    with pytest.raises(ServerError) as caught:
        server.client.push(b"{")
    assert caught.value.status == 422
    with pytest.raises(ServerError):
        server.client.replay("nobody", first=1)


def test_members_register_beat_and_depart_under_any_name(server: Serving) -> None:
    client, name = server.client, "rack/7 ü?#"
    assert not client.heartbeat(name)
    told = client.register("10.0.0.1", 8000, instance_id=name, metadata={"zone": "x"}, mq_port=5)
    assert (told.instance_id, told.re_registered) == (name, False)
    assert client.register("10.0.0.1", 8000, instance_id=name).re_registered
    assert client.heartbeat(name)
    (member,) = client.instances()
    assert (member.instance_id, member.ip, member.http_port) == (name, "10.0.0.1", 8000)
    assert client.register("10.0.0.2", 8000).instance_id not in ("", name)
    client.depart(name)
    assert not client.heartbeat(name)
    assert name not in [each.instance_id for each in client.instances()]


def test_usage_is_told_a_server_and_for_the_fleet(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE)))
    (module,) = server.client.usage("a").modules
    assert (module.tier, module.backend, module.used_bytes, module.usage_ratio) == ("l1", "dram", 14, None)
    (instance,) = server.client.fleet_usage().instances
    assert (instance.instance_id, instance.modules) == ("a", [module])
    with pytest.raises(ServerError):
        server.client.usage("nobody")


def test_metrics_come_as_text_and_readiness_as_reasons(server: Serving) -> None:
    assert "blendstream_ready" in server.client.metrics()
    assert server.client.not_ready() == []
    assert server.client.healthy()
    with answering(503, b'{"reasons": ["lag is unknown", "restoring"]}') as client:
        assert client.not_ready() == ["lag is unknown", "restoring"]
        assert not client.healthy()
    with answering(500, b"broken") as client, pytest.raises(ServerError, match="broken"):
        client.not_ready()


@pytest.mark.parametrize("uds", ["", None])
def test_it_reaches_a_server_by_port_or_by_socket(uds: str | None) -> None:
    with serving(**({} if uds is None else {"uds": uds, "host": "127.0.0.1", "port": 0})) as server:
        assert server.address.startswith("unix:" if uds is None else "http://")
        server.client.push(encode_rows([store(entries_of(SEQUENCE))]))
        assert server.client.stats().num_keys == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"detail": "no such thing"}', "no such thing"),
        (b'{"detail": [{"loc": ["body", "keys", 3], "msg": "must be an object"}]}', "body.keys.3: must be"),
        (b'["odd"]', "odd"),
        (b"<html>", "<html>"),
    ],
)
def test_whatever_form_a_refusal_has_it_is_told_on_a_line(body: bytes, said: str) -> None:
    with answering(418, body) as client, pytest.raises(ServerError) as caught:
        client.stats()
    assert caught.value.status == 418
    assert said in caught.value.detail


def test_an_answer_of_somebody_else_is_an_error_of_the_server() -> None:
    with answering(200, b"<html>hello</html>") as client, pytest.raises(ServerError, match="not the answer"):
        client.stats()


def test_where_nobody_answers_that_is_said_with_the_address() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with Client(url) as client, pytest.raises(ServerUnavailable, match=url):
            client.stats()


def test_a_server_that_does_not_answer_in_time_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, timeout=0.05) as client, pytest.raises(ServerUnavailable, match="in time"):
            client.stats()


def test_an_address_that_is_none_is_unavailable() -> None:
    with Client("http://[nowhere") as client, pytest.raises(ServerUnavailable):
        client.stats()


def test_tokens_are_sent_whole_whatever_array_they_come_in(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE)))
    for query in (
        SEQUENCE.astype(np.int64),
        np.repeat(SEQUENCE, 2)[::2],
        list(range(8)),
        SEQUENCE.astype(">u4"),
    ):
        assert len(server.client.blend_lookup(query, MODEL)) == 2
