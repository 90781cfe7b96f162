"""Settings of librdkafka from a properties file, kept from undoing what we rest on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def read_properties(path: Path) -> dict[str, str]:
    """The settings of a `.properties` file: `name=value` a line, `#` or `!` before a comment.

    Raises:
        ValueError: a line is neither; the message names the file and the line.
    """
    properties: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{path}, line {number}: must be name=value, got {text!r}")
        properties[name.strip()] = value.strip()
    return properties


def kafka_settings(
    bootstrap_servers: str,
    properties: Mapping[str, str],
    guarantees: Mapping[str, tuple[str, ...]],
    defaults: Mapping[str, str | int],
) -> dict[str, str | int]:
    """Settings for librdkafka: properties over defaults, and guarantees over both.

    Args:
        guarantees: what a client of ours rests on: the values that a setting may be given, ours first.

    Raises:
        ValueError: a property would undo one of them.
    """
    for name, allowed in guarantees.items():
        if properties.get(name, allowed[0]).lower() not in allowed:
            raise ValueError(f"{name} must be {allowed[0]}, got {properties[name]!r}")
    guaranteed = {name: allowed[0] for name, allowed in guarantees.items()}
    return {**defaults, **properties, **guaranteed, "bootstrap.servers": bootstrap_servers}
