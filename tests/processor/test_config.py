from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from processor.config import Config, ConfigError, environment_variable_of, flag_of
from processor.state import stats
from processor.state.directory import KeyDirectory
from processor.state.limits import MOST_CHUNKS


def test_the_defaults_are_those_of_lmcaches_coordinator() -> None:
    config = Config()
    assert (config.host, config.port, config.chunk_size) == ("0.0.0.0", 9300, 256)
    assert (config.hash_algorithm, config.enable_blend_lookup, config.blend_probe_stride) == (
        "blake3",
        False,
        1,
    )
    assert (config.event_transport, config.kafka_topic) == ("http", "lmcache-cache-events")
    assert config.timeout_keep_alive == 10
    assert (config.instance_timeout, config.health_check_interval) == (30.0, 10.0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("port", 65_536),
        ("port", -1),
        ("chunk_size", 0),
        ("blend_probe_stride", 0),
        ("max_chunks", -1),
        ("max_chunks", MOST_CHUNKS + 1),
        ("timeout_keep_alive", 0),
        ("repair_window", -1.0),
        ("max_lag", math.nan),
        ("instance_timeout", 0.0),
        ("instance_timeout", math.nan),
        ("health_check_interval", -1.0),
        ("event_transport", "pigeon"),
        ("hash_algorithm", "md5"),
        ("log_level", "loud"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_the_name_of_its_flag(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        Config(**{setting: value})
    assert flag_of(setting) in str(refused.value)
    assert str(value) in str(refused.value)


def test_as_many_chunks_may_be_asked_for_as_a_state_can_hold() -> None:
    assert Config(max_chunks=MOST_CHUNKS).max_chunks == MOST_CHUNKS
    with pytest.raises(ValueError, match=f"at most {MOST_CHUNKS}"):
        KeyDirectory(chunk_size=1, max_chunks=MOST_CHUNKS + 1)


def test_the_chunks_derived_from_memory_are_no_more_than_may_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stats, "machine_memory", lambda: 1 << 60)
    assert stats.default_max_chunks(chunk_size=1) == MOST_CHUNKS


def test_kafka_needs_an_address() -> None:
    with pytest.raises(ConfigError, match="--kafka-bootstrap-servers"):
        Config(event_transport="kafka")


def test_events_may_be_pushed_over_http_and_beside_kafka_only_if_asked_for() -> None:
    kafka: dict[str, Any] = {"event_transport": "kafka", "kafka_bootstrap_servers": "localhost:9092"}
    assert Config().push_enabled
    assert not Config(**kafka).push_enabled
    assert Config(**kafka, enable_push=True).push_enabled


def test_flags_and_environment_variables_have_the_fields_name() -> None:
    assert flag_of("max_lag") == "--max-lag"
    assert environment_variable_of("max_lag") == "BLENDSTREAM_MAX_LAG"


def test_librdkafka_settings_come_from_a_properties_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# comment\n\nsecurity.protocol = SASL_SSL\nsasl.password=a=b\n")
    config = Config(kafka_config=str(file))
    assert config.librdkafka_settings() == {"security.protocol": "SASL_SSL", "sasl.password": "a=b"}


def test_a_line_of_a_properties_file_that_is_no_setting_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol\n")
    with pytest.raises(ConfigError, match=r"client\.properties, line 1"):
        Config(kafka_config=str(file)).librdkafka_settings()


def test_a_properties_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="--kafka-config"):
        Config(kafka_config="/does/not/exist")
