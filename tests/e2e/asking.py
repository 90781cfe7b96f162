"""What a server that reads Kafka is started with, and what it is asked while it does."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from api.client import Client


def kafka(bootstrap: str, topic: str) -> list[str]:
    """The options that name a topic, of `serve` and of `emit` alike."""
    return ["--kafka-bootstrap-servers", bootstrap, "--kafka-topic", topic]


def reading(bootstrap: str, topic: str) -> list[str]:
    """The options of a server that reads a topic."""
    return ["--event-transport", "kafka", "--enable-blend-lookup", *kafka(bootstrap, topic)]


def ready(client: Client) -> bool:
    return not client.not_ready()


def metric(client: Client, name: str, **labels: str) -> float | None:
    """One sample, or None if there is none with exactly these labels."""
    samples = (s for family in text_string_to_metric_families(client.metrics()) for s in family.samples)
    return next((s.value for s in samples if s.name == name and s.labels == labels), None)


def by_instance(client: Client, name: str) -> dict[str, float]:
    """A metric of every emitter."""
    families = text_string_to_metric_families(client.metrics())
    samples = (sample for family in families for sample in family.samples if sample.name == name)
    return {sample.labels["instance_id"]: sample.value for sample in samples}
