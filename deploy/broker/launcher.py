"""Which broker class a kind means, starting one, and keeping one in the foreground."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from deploy.broker.broker import Broker, BrokerDied, BrokerError, BrokerKind
from deploy.broker.docker import DockerBroker
from deploy.broker.embedded import EmbeddedBroker
from deploy.broker.kafka import KafkaBroker

WATCH_INTERVAL = 0.2  # seconds

BROKERS: dict[BrokerKind, type[Broker]] = {
    BrokerKind.EMBEDDED: EmbeddedBroker,
    BrokerKind.KAFKA: KafkaBroker,
    BrokerKind.DOCKER: DockerBroker,
}


def why_unavailable(kind: BrokerKind | str) -> str | None:
    """What this machine lacks for that kind of broker, or None where it can be started."""
    return BROKERS[BrokerKind(kind)].why_unavailable()


def make_broker(kind: BrokerKind | str, port: int = 0, data_dir: Path | None = None) -> Broker:
    """A broker not started yet, on a free port for 0; without `data_dir` its data goes when it is closed."""
    kind = BrokerKind(kind)
    if kind is BrokerKind.KAFKA:
        return KafkaBroker(port, data_dir)
    if data_dir is not None:
        raise BrokerError(
            f"the {kind} broker keeps no data folder; only the kind {BrokerKind.KAFKA.value!r} does"
        )
    return DockerBroker(port) if kind is BrokerKind.DOCKER else EmbeddedBroker(port)


def launch(kind: BrokerKind | str, port: int = 0, data_dir: Path | None = None) -> Broker:
    """A broker that serves clients; close it when done. Raises a BrokerError that says what is missing."""
    broker = make_broker(kind, port, data_dir)
    try:
        broker.start()
    except BaseException:
        broker.close()
        raise
    return broker


def serve_broker(
    kind: BrokerKind | str, port: int = 0, data_dir: Path | None = None, say: Callable[[str], None] = print
) -> None:
    """Run a broker until SIGINT or SIGTERM, then stop it cleanly; `say` is told the address once it serves.

    Must run in the main thread. Raises a BrokerError where the broker does not start or ends by itself.
    """
    broker = make_broker(kind, port, data_dir)
    ends = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in ends]
    try:
        broker.start()
        say(f"{broker.kind} broker ready at {broker.bootstrap}")
        while broker.alive():
            time.sleep(WATCH_INTERVAL)
        raise BrokerDied(f"the {broker.kind} broker ended by itself:\n{broker.last_words()}")
    except KeyboardInterrupt:
        say(f"{broker.kind} broker stopping")
    finally:
        # A second request to stop must not interrupt the clean end that the first one began.
        for number in ends:
            signal.signal(number, signal.SIG_IGN)
        broker.close()
        for number, handler in zip(ends, before, strict=True):
            signal.signal(number, handler)
