"""Kafka in a Docker container, through testcontainers.

The image is that of the environment variable KAFKA_IMAGE, else `apache/kafka`; any image that takes the
variables of `apache/kafka` will do. The container is kept over `stop` and `start`, and its records with it;
`close` removes it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from deploy.broker.broker import HOST, STOP_TIMEOUT, Broker, BrokerError, BrokerKind, BrokerUnavailable

if TYPE_CHECKING:
    from docker.models.containers import Container
    from testcontainers.core.container import DockerContainer

DEFAULT_IMAGE = "apache/kafka:4.1.1"
LAST_LINES = 15

# Clients outside come in by the published port; the node itself uses a listener that only the container sees.
CLIENT_PORT, NODE_PORT, CONTROLLER_PORT = 9092, 9093, 9094
VARIABLES = {
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_LISTENERS": f"CLIENT://:{CLIENT_PORT},NODE://localhost:{NODE_PORT},CONTROLLER://localhost:{CONTROLLER_PORT}",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CLIENT:PLAINTEXT,NODE:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "NODE",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@localhost:{CONTROLLER_PORT}",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_HEAP_OPTS": "-Xmx512m",
}


def image() -> str:
    """The image that a new broker runs."""
    return os.environ.get("KAFKA_IMAGE") or DEFAULT_IMAGE


class DockerBroker(Broker):
    """One KRaft node in a container, its port published on the loopback address alone."""

    kind = BrokerKind.DOCKER
    durable = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self._handle: DockerContainer | None = None

    @staticmethod
    def why_unavailable() -> str | None:
        """What is missing on this machine, or None."""
        try:
            import docker
            import testcontainers.core  # noqa: F401
        except ImportError:
            return "testcontainers is not installed: pip install 'blendstream[dev]'"
        try:
            client = docker.from_env(timeout=10)
            try:
                client.ping()
            finally:
                client.close()
        except docker.errors.DockerException:
            return f"no Docker engine answers at {os.environ.get('DOCKER_HOST') or 'the default socket'}"
        return None

    def _launch(self) -> None:
        if self._handle is not None:
            self._container().start()
            return
        if (reason := self.why_unavailable()) is not None:
            raise BrokerUnavailable(reason)
        import docker
        from testcontainers.core.container import DockerContainer

        handle = DockerContainer(image()).with_envs(**VARIABLES)
        handle.with_env(
            "KAFKA_ADVERTISED_LISTENERS", f"CLIENT://{self.bootstrap},NODE://localhost:{NODE_PORT}"
        )
        # The annotation knows a bare port only, which would be published on every interface.
        handle.ports[f"{CLIENT_PORT}/tcp"] = (HOST, self.port)  # type: ignore[assignment]
        try:
            handle.start()
        except docker.errors.DockerException as error:
            handle.stop()
            raise BrokerError(
                f"the image {image()} could not be run (KAFKA_IMAGE names another one): {error}"
            ) from error
        self._handle = handle

    def _container(self) -> Container:
        assert self._handle is not None, "the broker was not started"
        return self._handle.get_wrapped_container()

    def _status(self) -> str:
        if self._handle is None:
            return "absent"
        container = self._container()
        container.reload()
        return str(container.status)

    def alive(self) -> bool:
        """Whether the container runs."""
        return self._status() in ("running", "paused")

    def stop(self) -> None:
        """Stop the container with SIGTERM, and with SIGKILL where that does not do."""
        self.resume()
        if self.alive():
            self._container().stop(timeout=int(STOP_TIMEOUT))

    def kill(self) -> None:
        """Kill the container."""
        if self.alive():
            self._container().kill()
            self._container().wait()

    def pause(self) -> None:
        """Freeze the container."""
        self._container().pause()

    def resume(self) -> None:
        """Let a frozen container go on."""
        if self._status() == "paused":
            self._container().unpause()

    def close(self) -> None:
        """Stop and remove the container."""
        if self._handle is not None:
            self.stop()
            self._handle.stop()
            self._handle = None

    def last_words(self) -> str:
        """The last lines that the container printed."""
        if self._handle is None:
            return "  (it logged nothing)"
        text = self._container().logs(tail=LAST_LINES).decode(errors="replace")
        return "\n".join("  " + line for line in text.splitlines())
