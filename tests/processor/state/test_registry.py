from __future__ import annotations

import json

import pytest

from processor.state.registry import Instance, Registry
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(clock: Clock) -> Registry:
    return Registry(clock)


def instance(instance_id: str, ip: str = "10.0.0.1") -> Instance:
    return Instance(instance_id, ip, 8000, 1_700_000_000.5, {"rack": "7"}, "http://10.0.0.1:9", 5555)


def test_registering_again_replaces_the_entry_and_says_so(registry: Registry) -> None:
    assert not registry.register(instance("a"))
    assert not registry.register(instance("b"))
    assert registry.register(instance("a", "10.0.0.2"))
    assert [(entry.instance_id, entry.ip) for entry in registry.instances()] == [
        ("a", "10.0.0.2"),
        ("b", "10.0.0.1"),
    ]


def test_who_left_is_not_registered(registry: Registry) -> None:
    registry.register(instance("a"))
    assert registry.deregister("a")
    assert not registry.deregister("a")
    assert "a" not in registry
    assert len(registry) == 0


def test_a_heartbeat_of_who_is_not_registered_registers_nobody(registry: Registry) -> None:
    assert not registry.heard("a")
    assert registry.instances() == []
    assert registry.silent(0.0, 0.0) == []


def test_who_was_not_heard_from_for_longer_than_the_timeout_is_silent(
    registry: Registry, clock: Clock
) -> None:
    for name in ("quiet", "beating", "again"):
        registry.register(instance(name))
    clock.now += 20
    registry.heard("beating")
    registry.register(instance("again"))
    clock.now += 10
    assert registry.silent(30.0, 0.0) == []
    clock.now += 1
    assert registry.silent(30.0, 0.0) == ["quiet"]


def test_silence_from_before_the_given_moment_does_not_count(registry: Registry, clock: Clock) -> None:
    registry.register(instance("a"))
    clock.now += 100
    began = clock.now
    assert registry.silent(30.0, began) == []
    clock.now += 31
    assert registry.silent(30.0, began) == ["a"]


def test_what_is_restored_is_registered_and_counts_as_just_heard_from(
    registry: Registry, clock: Clock
) -> None:
    registry.register(instance("a"))
    registry.register(instance("b"))
    kept = json.loads(json.dumps(registry.capture()))
    later = Clock()
    later.now = 3.0
    restored = Registry(later)
    restored.restore(kept)
    assert restored.instances() == registry.instances()
    later.now += 30
    assert restored.silent(30.0, 0.0) == []
    later.now += 1
    assert restored.silent(30.0, 0.0) == ["a", "b"]


def test_what_is_no_capture_is_refused(registry: Registry) -> None:
    with pytest.raises(TypeError):
        registry.restore([{"instance_id": "a"}])
