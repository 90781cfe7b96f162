"""What a test is told about the broker it runs on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker to talk to; `kind` is embedded, kafka, docker or external."""

    bootstrap: str
    kind: str
