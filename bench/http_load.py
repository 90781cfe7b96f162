"""Servers to measure over HTTP, and a client that costs little enough to measure with.

Requests are made ahead as whole byte strings and sent over a bare socket: a full client library would take
longer than the faster answers do.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import workload
from bench.harness import ROOT, WorkerError, peer_environment
from bench.ours.wire import column_record

HOST = "127.0.0.1"
START_SECONDS = 120.0  # a first start compiles kernels


class Connection:
    """One keep-alive connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pending = b""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, request: bytes) -> bytes:
        """Send a whole request and return the body of its answer, which must be a 200."""
        self._socket.sendall(request)
        while (end := self._pending.find(b"\r\n\r\n")) < 0:
            self._receive()
        head, body = self._pending[:end], self._pending[end + 4 :]
        self._pending = b""
        lines = head.lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
        parts = [body]
        missing = length - len(body)
        while missing > 0:
            parts.append(self._read())
            missing -= len(parts[-1])
        answer = b"".join(parts)
        if b" 200 " not in lines[0]:
            raise WorkerError(f"{head.decode()}: {answer[:500].decode(errors='replace')}")
        return answer

    def _receive(self) -> None:
        self._pending += self._read()

    def _read(self) -> bytes:
        received = self._socket.recv(1 << 18)
        if not received:
            raise WorkerError("the server closed the connection")
        return received


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    """A POST as the bytes to send."""
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: bench",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


@dataclass(frozen=True)
class Server:
    """A running server and the wire its fleet would send it."""

    port: int
    record: Callable[[int], bytes]

    def load(self, chunks: int) -> int:
        """Post the first batches, until `chunks` chunks are stored; returns the number of batches."""
        batches = -(-chunks // workload.BATCH_ENTRIES)
        with Connection(self.port) as connection:
            for number in range(batches):
                connection.send(post("/events", self.record(number)))
        return batches


@contextmanager
def our_server(record: Callable[[int], bytes] = column_record) -> Iterator[Server]:
    """`blendstream serve`, taking events over HTTP."""
    command = [
        str(Path(sys.executable).parent / "blendstream"),
        *("serve", "--host", HOST, "--port", "{port}"),
        *("--event-transport", "http", "--enable-blend-lookup", "--chunk-size", str(workload.CHUNK_SIZE)),
    ]
    with _running(command, dict(os.environ), "/readyz") as port:
        yield Server(port, record)


@contextmanager
def peer_server(python: str) -> Iterator[Server]:
    """The peer's coordinator, taking events over HTTP."""
    with _running(
        [python, "-m", "bench.peer.server", HOST, "{port}"], peer_environment(), "/healthz"
    ) as port:
        yield Server(port, workload.row_record)


@contextmanager
def _running(command: list[str], environment: dict[str, str], probe: str) -> Iterator[int]:
    port = _free_port()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            [word.format(port=port) for word in command],
            cwd=ROOT,
            env=environment,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(port, probe):
                if process.poll() is not None or time.monotonic() > deadline:
                    printed.seek(0)
                    raise WorkerError(f"{' '.join(command)} did not start:\n{printed.read()[-2000:]}")
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(port: int, probe: str) -> bool:
    try:
        with Connection(port) as connection:
            connection.send(f"GET {probe} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
    except (OSError, WorkerError):
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def latencies(connection: Connection, requests: Sequence[bytes]) -> list[float]:
    """Milliseconds each request took, one after the other."""
    taken = []
    for request in requests:
        start = time.perf_counter()
        connection.send(request)
        taken.append((time.perf_counter() - start) * 1e3)
    return taken


def latencies_during(
    connection: Connection, requests: Sequence[bytes], busy: Callable[[], bool]
) -> list[float]:
    """Milliseconds each request took, over and over, while `busy`."""
    taken: list[float] = []
    while busy():
        taken += latencies(connection, requests)
    return taken


def percentile(values: Sequence[float], percent: int) -> float:
    """The `percent`-th percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


class Stream(threading.Thread):
    """Posts records one after the other on a thread of its own; `seconds` is how long that took."""

    def __init__(self, port: int, requests: Sequence[bytes]) -> None:
        super().__init__(name="bench-ingest", daemon=True)
        self._port = port
        self._requests = requests
        self.seconds = 0.0

    def run(self) -> None:
        """Post them all."""
        with Connection(self._port) as connection:
            start = time.perf_counter()
            for request in self._requests:
                connection.send(request)
            self.seconds = time.perf_counter() - start
