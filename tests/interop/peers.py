"""Both coordinators behind one small interface, and LMCache's own emitters and clients as processes.

The peer runs in the Python that PEER_PYTHON names, from the scripts in `peer/`; nothing of it is imported
here.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal

from tests.waiting import wait_for

SCRIPTS = Path(__file__).parent / "peer"
START_SECONDS = 60.0


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; `body` is None where there is none."""

    status: int
    body: Any


class Coordinator:
    """A coordinator's HTTP interface: LMCache's, ours as a process, or ours in this process."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str, **query: Any) -> Answer:
        return _answer(self._client.get(path, params=query))

    def post(self, path: str, body: object) -> Answer:
        return _answer(self._client.post(path, json=body))

    def send(self, path: str, content: bytes) -> Answer:
        """Post bytes that call themselves JSON."""
        return _answer(self._client.post(path, content=content, headers={"content-type": "application/json"}))

    def put(self, path: str) -> Answer:
        return _answer(self._client.put(path))

    def delete(self, path: str) -> Answer:
        return _answer(self._client.delete(path))


class InProcess(httpx.BaseTransport):
    """Requests to an ASGI application of this process, which runs on the portal's event loop."""

    def __init__(self, app: Any, portal: BlockingPortal) -> None:
        self._app = httpx.ASGITransport(app)
        self._portal = portal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._portal.call(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        response = await self._app.handle_async_request(request)
        return httpx.Response(response.status_code, headers=response.headers, content=await response.aread())


class PeerCoordinator(Coordinator):
    """LMCache's; `fresh` empties it."""

    @property
    def url(self) -> str:
        return str(self._client.base_url)

    def fresh(self) -> None:
        assert self._client.post("/fresh").status_code == 204


@contextmanager
def peer_coordinator(python: str, chunk_size: int) -> Iterator[PeerCoordinator]:
    """LMCache's coordinator with blend lookup, taking events over HTTP."""
    port = free_port()
    with (
        process([python, str(SCRIPTS / "coordinator.py"), str(port), str(chunk_size)]) as running,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30.0) as client,
    ):
        wait_for(lambda: running.serves(client, "/healthz"), START_SECONDS, "LMCache's coordinator answers")
        yield PeerCoordinator(client)


@contextmanager
def our_coordinator(chunk_size: int, *flags: str) -> Iterator[tuple[Coordinator, str]]:
    """The command `blendstream serve` with blend lookup, and its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(Path(sys.executable).parent / "blendstream"), "serve"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--chunk-size", str(chunk_size)]
    command += ["--enable-blend-lookup", "--max-chunks", "10000", *flags]
    with process(command) as running, httpx.Client(base_url=url, timeout=30.0) as client:
        wait_for(lambda: running.serves(client, "/readyz"), START_SECONDS, "blendstream serve is ready")
        yield Coordinator(client), url


def run_peer(python: str, script: str, told: object) -> Any:
    """Run a script of `peer/` on what it is told; returns what it prints, as JSON if it prints anything."""
    done = subprocess.run(
        [python, str(SCRIPTS / script)],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=120,
        env=_environment(),
    )
    assert done.returncode == 0, f"{script} failed:\n{done.stderr[-2000:]}"
    printed = done.stdout.strip().splitlines()
    return json.loads(printed[-1]) if printed and printed[-1].startswith("[") else None


class Running:
    """A process under test and what it has printed."""

    def __init__(self, child: subprocess.Popen[str], printed: Any) -> None:
        self._child = child
        self._printed = printed

    def serves(self, client: httpx.Client, path: str) -> bool:
        """Whether the process answers 200; an AssertionError with its last words if it ended."""
        if self._child.poll() is not None:
            self._printed.seek(0)
            raise AssertionError(
                f"ended with status {self._child.returncode}:\n{self._printed.read()[-2000:]}"
            )
        try:
            return client.get(path).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def process(command: list[str]) -> Iterator[Running]:
    with TemporaryFile("w+") as printed:
        child = subprocess.Popen(
            command, stdout=printed, stderr=subprocess.STDOUT, text=True, env=_environment()
        )
        try:
            yield Running(child, printed)
        finally:
            child.terminate()
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _environment() -> dict[str, str]:
    return {**os.environ, "LMCACHE_LOG_LEVEL": "ERROR"}


def _answer(response: httpx.Response) -> Answer:
    return Answer(response.status_code, response.json() if response.content else None)
