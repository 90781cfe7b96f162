"""Properties are read as they stand, and take the place of defaults, never of guarantees."""

from __future__ import annotations

from pathlib import Path

import pytest

from producer.kafka_properties import kafka_settings, read_properties

GUARANTEES = {"acks": ("all", "-1")}
DEFAULTS: dict[str, str | int] = {"linger.ms": 5}


def test_a_properties_file_is_read_by_name_and_value(tmp_path: Path) -> None:
    path = tmp_path / "kafka.properties"
    path.write_text("# TLS\n! more\n\nsecurity.protocol = SSL\nsasl.jaas.config=a=b c\nssl.ca.location=\n")
    assert read_properties(path) == {
        "security.protocol": "SSL",
        "sasl.jaas.config": "a=b c",
        "ssl.ca.location": "",
    }


@pytest.mark.parametrize("line", ["linger.ms", "= 5", "linger.ms: 5"])
def test_a_line_that_is_no_property_is_refused_by_file_and_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "kafka.properties"
    path.write_text(f"linger.ms=5\n{line}\n")
    with pytest.raises(ValueError, match=r"kafka.properties, line 2: must be name=value") as caught:
        read_properties(path)
    assert line in str(caught.value)


def test_properties_take_the_place_of_defaults() -> None:
    assert kafka_settings(
        "kafka:9092", {"linger.ms": "7", "ssl.ca.location": "ca"}, GUARANTEES, DEFAULTS
    ) == {
        "bootstrap.servers": "kafka:9092",
        "acks": "all",
        "linger.ms": "7",
        "ssl.ca.location": "ca",
    }


@pytest.mark.parametrize("same", ["all", "ALL", "-1"])
def test_a_property_may_repeat_a_guarantee_in_other_words(same: str) -> None:
    assert kafka_settings("kafka:9092", {"acks": same}, GUARANTEES, DEFAULTS)["acks"] == "all"


def test_a_property_that_would_undo_a_guarantee_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^acks must be all, got '1'$"):
        kafka_settings("kafka:9092", {"acks": "1"}, GUARANTEES, DEFAULTS)


def test_properties_cannot_lead_to_another_broker() -> None:
    settings = kafka_settings("kafka:9092", {"bootstrap.servers": "elsewhere:1"}, GUARANTEES, DEFAULTS)
    assert settings["bootstrap.servers"] == "kafka:9092"
