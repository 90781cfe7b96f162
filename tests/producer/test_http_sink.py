"""Requests as a server gets them, and what the sink makes of the answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from producer.events import CacheEventBatch, CacheEventEntry, EventType, ObjectKey, Tier
from producer.sinks import http
from producer.sinks.http import HttpSink
from producer.sinks.protocol import PublishError
from producer.wire import Wire, decode


class Server(HTTPServer):
    """Keeps the bodies posted to it, and answers with each of `answers` in turn, then 200; None hangs up."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.answers: list[int | None] = []
        super().__init__(address, Handler)  # type: ignore[arg-type]


class UnixServer(Server):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = self.server.answers.pop(0) if self.server.answers else 200
        if answer is None:
            self.close_connection = True
            return
        self.server.bodies.append(body)
        self.server.paths.append(self.path)
        self.send_response(answer)
        self.send_header("content-length", "2")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server(("127.0.0.1", 0))) as running:
        yield running


@pytest.fixture
def sink(server: Server) -> Iterator[HttpSink]:
    sink = HttpSink(f"http://127.0.0.1:{server.server_port}/", timeout=5.0)
    yield sink
    sink.close()


def batch(seq: int) -> CacheEventBatch:
    entry = CacheEventEntry(ObjectKey(b"\1", "llama", 1), 10, [1, 2], 0)
    return CacheEventBatch("server-1", 7, seq, EventType.STORE, Tier.L1, "dram", [entry])


def test_batches_are_posted_to_events_in_rows(server: Server, sink: HttpSink) -> None:
    sent = [batch(1), batch(2)]
    sink.publish(sent)
    assert server.paths == ["/events"]
    assert b'"columns"' not in server.bodies[0]
    assert decode(server.bodies[0]) == sent
    assert sink.wires == {Wire.ROWS}
    assert sink.flush(0)


def test_large_lots_are_split_over_requests_in_order(
    server: Server, sink: HttpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_BYTES", 1_000)
    sent = [batch(seq) for seq in range(1, 21)]
    sink.publish(sent)
    assert len(server.bodies) > 3
    assert [one for body in server.bodies for one in decode(body)] == sent


def test_an_answer_other_than_success_drops_the_requests_batches_alone(
    server: Server, sink: HttpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_BYTES", 1)
    server.answers = [200, 422, 200]
    with pytest.raises(PublishError, match=r"did not take 1 of 3 batches: 422 \{\}$") as caught:
        sink.publish([batch(1), batch(2), batch(3)])
    assert caught.value.dropped == 1
    assert len(server.bodies) == 3


def test_a_broken_connection_is_tried_once_more(server: Server, sink: HttpSink) -> None:
    server.answers = [None, 200]
    sink.publish([batch(1)])
    assert [decode(body) for body in server.bodies] == [[batch(1)]]


def test_a_server_that_keeps_hanging_up_costs_the_batches(server: Server, sink: HttpSink) -> None:
    server.answers = [None, None]
    with pytest.raises(PublishError) as caught:
        sink.publish([batch(1), batch(2)])
    assert caught.value.dropped == 2


def test_no_server_costs_the_batches() -> None:
    sink = HttpSink("http://127.0.0.1:1")
    with pytest.raises(PublishError, match=r"http://127.0.0.1:1/events did not take 1 of 1"):
        sink.publish([batch(1)])
    sink.close()


def test_a_server_can_be_reached_by_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "api.sock")
    with serving(UnixServer(path)) as server:
        sink = HttpSink("http://blendstream", uds=path)
        sink.publish([batch(1)])
        sink.close()
        assert len(server.bodies) == 1
