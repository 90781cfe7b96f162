"""The settings of one processor: every flag of `blendstream serve`, its default, its bounds and its help.

This is the one place where a setting has a name. The command line is generated from these fields (`max_lag`
becomes `--max-lag` and the environment variable `BLENDSTREAM_MAX_LAG`), and a `Config` that exists is valid:
a bad value is a `ConfigError` that names the flag. Flags that LMCache's coordinator has too keep their name,
meaning and default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from processor.state.limits import MOST_CHUNKS
from producer.errors import OperatorError

TRANSPORTS: Final = ("http", "kafka")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
MAX_CHUNK_SIZE: Final = 65_536


class ConfigError(OperatorError, ValueError):
    """A setting is out of its bounds; the message names its flag and the value."""


def flag_of(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def environment_variable_of(name: str) -> str:
    """The environment variable of a field."""
    return "BLENDSTREAM_" + name.upper()


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a processor runs with; times are in seconds."""

    host: str = _setting("0.0.0.0", "Address to listen on.")
    port: int = _setting(9300, "TCP port to listen on; 0 takes a free one.")
    uds: str = _setting("", "Listen on this Unix socket instead of TCP.")
    chunk_size: int = _setting(256, "Tokens per KV chunk; must equal the cache servers' own.")
    hash_algorithm: str = _setting("blake3", "Hash of the chunks' tokens; must equal the cache servers' own.")
    enable_blend_lookup: bool = _setting(False, "Index chunk contents, for POST /directory/blend-lookup.")
    blend_probe_stride: int = _setting(
        1, "Positions from one probe of a query to the next; 1 finds everything."
    )
    max_chunks: int = _setting(0, "Most chunks the state may hold; 0 derives it from the machine's memory.")
    event_transport: str = _setting("http", "Where cache events come from: http (POST /events) or kafka.")
    enable_push: bool = _setting(False, "Take POST /events beside Kafka as well.")
    kafka_bootstrap_servers: str = _setting("", "Kafka brokers, host:port, separated by commas.")
    kafka_topic: str = _setting("lmcache-cache-events", "Topic that carries the cache events.")
    kafka_group_id: str = _setting(
        "blendstream", "Consumer group that lag tools know this processor by; each replica needs its own."
    )
    kafka_config: str = _setting("", "Properties file of further librdkafka settings (TLS, SASL, ...).")
    kafka_dead_letter_topic: str = _setting("", "Topic that records which cannot be decoded are copied to.")
    repair_window: float = _setting(
        3600.0, "Seconds for which a lost batch may still turn up and repair its gap."
    )
    clock_skew: float = _setting(60.0, "Seconds by which the clocks of the cache servers may lie apart.")
    max_lag: float = _setting(10.0, "Ready only if no more than so many seconds behind the end of the topic.")
    instance_timeout: float = _setting(
        30.0, "Seconds after which a registered server that is not heard from is given up."
    )
    health_check_interval: float = _setting(
        10.0, "Seconds from one look for such servers to the next; 0: none."
    )
    checkpoint_path: str = _setting(
        "", "Folder that keeps the state across restarts; without it, none is kept."
    )
    checkpoint_interval: float = _setting(
        60.0, "Seconds from one checkpoint to the next; 0 for none by the clock."
    )
    timeout_keep_alive: int = _setting(10, "Seconds for which an idle HTTP connection is kept.")
    disable_metrics: bool = _setting(False, "Answer 404 on /metrics.")
    log_level: str = _setting("info", "debug, info, warning or error.")

    def __post_init__(self) -> None:
        self._within("port", 0, 65_535)
        self._within("chunk_size", 1, MAX_CHUNK_SIZE)
        self._within("blend_probe_stride", 1, 2**31 - 1)
        self._within("max_chunks", 0, MOST_CHUNKS)
        self._within("timeout_keep_alive", 1, 86_400)
        for name in (
            "repair_window",
            "clock_skew",
            "max_lag",
            "health_check_interval",
            "checkpoint_interval",
        ):
            self._within(name, 0.0, math.inf)
        if not self.instance_timeout > 0:
            raise ConfigError(f"{flag_of('instance_timeout')} must be > 0, got {self.instance_timeout}")
        self._one_of("event_transport", TRANSPORTS)
        self._one_of("hash_algorithm", ("blake3",))
        self._one_of("log_level", LOG_LEVELS)
        if self.event_transport == "kafka":
            for name in ("kafka_bootstrap_servers", "kafka_topic", "kafka_group_id"):
                if not getattr(self, name).strip():
                    raise ConfigError(f"{flag_of(name)} must be given with --event-transport kafka")
        if self.kafka_config and not Path(self.kafka_config).is_file():
            raise ConfigError(f"{flag_of('kafka_config')}: no such file: {self.kafka_config!r}")

    @property
    def push_enabled(self) -> bool:
        """Whether `POST /events` is open."""
        return self.event_transport == "http" or self.enable_push

    def librdkafka_settings(self) -> dict[str, str]:
        """The settings of the properties file, as librdkafka takes them."""
        if not self.kafka_config:
            return {}
        from producer.kafka_properties import read_properties

        try:
            return read_properties(Path(self.kafka_config))
        except ValueError as error:
            raise ConfigError(f"{flag_of('kafka_config')}: {error}") from None

    def _within(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            bounds = f">= {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
            raise ConfigError(f"{flag_of(name)} must be {bounds}, got {value}")

    def _one_of(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ConfigError(f"{flag_of(name)} must be one of {', '.join(choices)}, got {value!r}")
