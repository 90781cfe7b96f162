"""A local broker for demos, tests and work on the code.

Three kinds: embedded, Apache Kafka as a process, and Kafka in Docker. `launch` starts one and hands it back
ready; `serve_broker` keeps one in the foreground until it is told to stop. Nothing here knows what the
records mean, and nothing of Blendstream is imported.
"""

from deploy.broker.broker import (
    Broker,
    BrokerDied,
    BrokerError,
    BrokerKind,
    BrokerNotReady,
    BrokerUnavailable,
    FolderInUse,
    PortTaken,
    free_port,
)
from deploy.broker.docker import DockerBroker
from deploy.broker.embedded import EmbeddedBroker
from deploy.broker.kafka import KafkaBroker
from deploy.broker.launcher import launch, make_broker, serve_broker, why_unavailable
from deploy.broker.topics import create_topic, delete_topic

__all__ = [
    "Broker",
    "BrokerDied",
    "BrokerError",
    "BrokerKind",
    "BrokerNotReady",
    "BrokerUnavailable",
    "DockerBroker",
    "EmbeddedBroker",
    "FolderInUse",
    "KafkaBroker",
    "PortTaken",
    "create_topic",
    "delete_topic",
    "free_port",
    "launch",
    "make_broker",
    "serve_broker",
    "why_unavailable",
]
