"""What every local broker has in common: its life, its port, and how it is known to be ready.

Life: `start` returns when the broker serves clients; `stop` ends it cleanly, `kill` at once; a later `start`
brings it back on the same port, with its data where the kind keeps any. `close` stops it and removes what was
temporary. Readiness is asked of the broker through a Kafka client, never read
from a log.
"""

from __future__ import annotations

import random
import socket
import time
from abc import ABC, abstractmethod
from enum import StrEnum
from types import TracebackType
from typing import ClassVar, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

HOST = "127.0.0.1"
READY_TIMEOUT = 120.0  # seconds; a cold JVM on a busy machine of two cores takes thirty
STOP_TIMEOUT = 20.0  # seconds from the request to stop until the broker is killed
POLL_INTERVAL = 0.05  # seconds

# Below the range that Linux takes ports for outgoing connections from. While a broker is down, a client that
# keeps connecting may be given from that range the very port it connects to: it then talks to itself and
# keeps the broker from coming back.
PORTS = range(20000, 32000)


class BrokerKind(StrEnum):
    """Which broker: in memory, Apache Kafka as a process, or Kafka in a container."""

    EMBEDDED = "embedded"
    KAFKA = "kafka"
    DOCKER = "docker"


class BrokerError(RuntimeError):
    """A broker could not be started or did not stay up; the message says what to do about it."""


class BrokerUnavailable(BrokerError):
    """This machine lacks what the kind of broker needs."""


class PortTaken(BrokerError):
    """Another process listens on the port asked for."""


class FolderInUse(BrokerError):
    """Another broker runs on the data folder."""


class BrokerDied(BrokerError):
    """The broker ended by itself."""


class BrokerNotReady(BrokerError):
    """The broker runs, but answered no client in time."""


def port_is_free(port: int) -> bool:
    """Whether a server could listen on `port` of the loopback address now."""
    with socket.socket() as probe:
        # As servers do: connections of the last server that linger in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A loopback port that nobody listens on at the moment."""
    for port in random.sample(PORTS, 200):
        if port_is_free(port):
            return port
    raise PortTaken(f"no free port among 200 tried between {PORTS.start} and {PORTS.stop - 1}")


class Broker(ABC):
    """One broker on one loopback port; a context manager that starts and closes it."""

    kind: ClassVar[BrokerKind]
    durable: ClassVar[bool]
    """Whether records survive `stop` or `kill` followed by `start`."""

    def __init__(self, port: int = 0) -> None:
        if not 0 <= port <= 65535:
            raise BrokerError(f"port must be from 0 to 65535, got {port}")
        self.port = port or free_port()

    @staticmethod
    @abstractmethod
    def why_unavailable() -> str | None:
        """What this machine lacks for this kind of broker, with the remedy; None where nothing."""

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    def start(self, timeout: float = READY_TIMEOUT) -> None:
        """Start the broker, or start it again, and return once it serves clients."""
        if self.alive():
            return
        if not port_is_free(self.port):
            raise PortTaken(
                f"port {self.port} is taken by another process; choose another one, or 0 for a free one"
            )
        try:
            self._launch()
            self._wait_until_ready(timeout)
        except BaseException:
            self.kill()
            raise

    @abstractmethod
    def stop(self) -> None:
        """End the broker cleanly; one that does not end within `STOP_TIMEOUT` is killed."""

    @abstractmethod
    def kill(self) -> None:
        """End the broker at once, as a crash of its machine would."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze the broker: connections stay open and nothing answers."""

    @abstractmethod
    def resume(self) -> None:
        """Let a frozen broker go on."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether the broker runs (frozen counts)."""

    def close(self) -> None:
        """Stop the broker and remove what was made for it alone."""
        self.stop()

    @abstractmethod
    def last_words(self) -> str:
        """The end of what the broker logged, for error messages."""

    @abstractmethod
    def _launch(self) -> None:
        """Begin to run the broker, without waiting for it."""

    def _wait_until_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        admin: AdminClient | None = None
        while time.monotonic() < deadline:
            if not self.alive():
                raise BrokerDied(f"the {self.kind} broker ended while it started:\n{self.last_words()}")
            if admin is None and self._port_answers():
                admin = AdminClient(
                    {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 100}
                )
            if admin is not None and self._serves(admin):
                return
            time.sleep(POLL_INTERVAL)
        raise BrokerNotReady(
            f"the {self.kind} broker at {self.bootstrap} answered no client within {timeout:g} s:\n"
            f"{self.last_words()}"
        )

    def _port_answers(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _serves(self, admin: AdminClient) -> bool:
        """Whether the broker lists itself, under the address it was given."""
        try:
            brokers = admin.list_topics(timeout=1).brokers.values()
        except KafkaException:
            return False
        return any(broker.port == self.port for broker in brokers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
