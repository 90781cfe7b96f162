"""Everything the demo runs on this machine: a broker, a processor and a fleet, each in its own process.

All of it lives in one temporary folder, logs included, and ends with the `with` block. The folder stays only
where something failed, since its logs say why.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from api.answers import Stream
from api.client import Client, ServerError, ServerUnavailable
from api.demo.children import Child, ServerProcess
from api.demo.messages import Message, Recipe, Report, Start
from api.demo.workload import CHUNK_TOKENS
from deploy.broker import create_topic, free_port

TOPIC: Final = "blendstream-demo"
PARTITIONS: Final = 4
BROKER_TIMEOUT: Final = 300.0
"""Seconds until the broker must serve; the very first start of Apache Kafka on a machine fetches it."""
READY_TIMEOUT: Final = 300.0
"""Seconds until the processor must be ready; the very first start on a machine compiles its kernels."""
SLOW: Final = 6.0
"""Seconds after which somebody who waits wants to know why."""
SETTLE_TIMEOUT: Final = 60.0
"""Seconds until what the fleet has emitted must have been applied."""
POLL_INTERVAL: Final = 0.02


class NotSettledError(RuntimeError):
    """What the fleet emitted was not applied in time."""


class Local:
    """A broker, a processor and, once `start_fleet` was called, a fleet of cache servers."""

    def __init__(self, broker: str, recipe: Recipe) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="blendstream-demo-"))
        self.pool = self.folder / "pool"
        self.pool.mkdir()
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.client = Client(self.url, timeout=60.0)
        self.servers: dict[str, ServerProcess] = {}
        self.keep_folder = False
        self.kind = broker
        self._recipe = recipe
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Fleet, processor, broker: nobody is left talking to one that is gone.
        for server in self.servers.values():
            server.ask_to_stop()
        for child in [*self.servers.values(), *reversed(self._children)]:
            child.stop()
        self.client.close()
        failed = kind is not None and not issubclass(kind, KeyboardInterrupt)
        if not failed and not self.keep_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start_broker(self, slow: Callable[[], None] = lambda: None) -> None:
        """Start the broker and make the topic; `slow` is called if that takes its time."""
        port = self.bootstrap.rpartition(":")[2]
        broker = self._child("broker", "broker", self.kind, port)
        self._wait(
            broker, BROKER_TIMEOUT, lambda: f"ready at {self.bootstrap}" in broker.log.read_text(), slow
        )
        create_topic(self.bootstrap, TOPIC, PARTITIONS)

    def start_processor(self, slow: Callable[[], None] = lambda: None) -> None:
        """Start `blendstream serve` and wait until it is ready; `slow` is called if that takes its time."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        flags = ["--host", host, "--port", port, "--chunk-size", str(CHUNK_TOKENS), "--enable-blend-lookup"]
        flags += ["--event-transport", "kafka", "--kafka-bootstrap-servers", self.bootstrap]
        flags += ["--kafka-topic", TOPIC]
        processor = self._child("processor", "blendstream", "serve", *flags)
        self._wait(processor, READY_TIMEOUT, self._is_ready, slow)

    def start_fleet(self, names: Iterable[str]) -> dict[str, Report]:
        """Start the cache servers; their first reports by name."""
        for name in names:
            self.start_server(name)
        return {name: server.answer() for name, server in self.servers.items()}

    def start_server(self, name: str) -> ServerProcess:
        """Start one cache server, for the first time or anew; its first report is still to be read."""
        start = Start(name, self._recipe, self.bootstrap, TOPIC, self.folder, self.pool)
        self.servers[name] = ServerProcess(start, self.folder)
        return self.servers[name]

    def ask(self, messages: Mapping[str, Message], meanwhile: Callable[[], None]) -> dict[str, Report]:
        """Send each server its message and do something else until all have answered."""
        for name, message in messages.items():
            self.servers[name].ask(message)
        while not all(self.servers[name].answered() for name in messages):
            self.check()
            meanwhile()
        return {name: self.servers[name].answer() for name in messages}

    def settle(self, reports: Mapping[str, Report], gap: str | None = None) -> dict[str, Stream]:
        """Wait until all that the servers reported is applied, with a gap in one stream or in none."""
        deadline = time.monotonic() + SETTLE_TIMEOUT
        while True:
            streams = {stream.instance_id: stream for stream in self.client.streams()}
            behind = [name for name, report in reports.items() if not _applied(streams.get(name), report)]
            open_gaps = [name for name, stream in streams.items() if stream.missing or stream.lost]
            if not behind and open_gaps == ([] if gap is None else [gap]):
                return streams
            if time.monotonic() > deadline:
                raise NotSettledError(
                    f"after {SETTLE_TIMEOUT:g} s the processor is behind on {behind or 'nothing'} and has "
                    f"gaps in {open_gaps or 'nothing'}; see the logs in {self.folder}"
                )
            self.check()
            time.sleep(POLL_INTERVAL)

    def check(self) -> None:
        """Raise a `ChildError` if any process has ended by itself."""
        for child in [*self._children, *self.servers.values()]:
            child.check()

    def _child(self, name: str, *arguments: str) -> Child:
        child = Child(name, self.folder, "api.demo.tethered", *arguments)
        self._children.append(child)
        return child

    def _is_ready(self) -> bool:
        try:
            return not self.client.not_ready()
        except (ServerUnavailable, ServerError):
            return False

    def _wait(
        self,
        child: Child,
        timeout: float,
        ready: Callable[[], bool],
        slow: Callable[[], None] = lambda: None,
    ) -> None:
        began = time.monotonic()
        deadline = began + timeout
        told = False
        while not ready():
            child.check()
            if not told and time.monotonic() > began + SLOW:
                slow()
                told = True
            if time.monotonic() > deadline:
                raise child.error(f"the {child.name} was not ready after {timeout:g} s")
            time.sleep(POLL_INTERVAL)


def _applied(stream: Stream | None, report: Report) -> bool:
    return (
        stream is not None and stream.incarnation == report.incarnation and stream.last_seq == report.last_seq
    )
