"""A keeper around one directory: what its components kept comes back, or the start ends and says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from processor.durability import restoration
from processor.durability.errors import CheckpointChanged, CheckpointMismatch
from processor.durability.keeper import Component, Keeper
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.gate import EventGate
from tests.processor.state.fleet import Fleet, directory


def keeper(path: Path, restore: Callable[[Any], None], held: Any = None) -> Keeper:
    held = held or directory()
    gate = EventGate(Broadcaster([held]), clock=lambda: 0.0)
    return Keeper(path, 0, gate, held.parts, {"clock": Component(lambda: lambda: {"hours": 7}, restore)})


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with two checkpoints."""
    held = directory()
    fleet = Fleet(held, 1, 200)
    kept = keeper(tmp_path, lambda data: None, held)
    kept.start()
    for _ in range(2):
        fleet.step()
        kept.ask().result(30)
    kept.stop(0)
    return tmp_path


def test_a_component_takes_back_what_it_gave(written: Path) -> None:
    given: list[Any] = []
    kept = keeper(written, given.append)
    kept.start()
    kept.stop(0)
    assert given == [{"hours": 7}]


@pytest.mark.parametrize("error", [KeyError("minutes"), TypeError("no list"), ValueError("7 is late")])
def test_what_a_component_cannot_take_back_ends_the_start_and_is_named(
    written: Path, error: Exception
) -> None:
    def refuse(data: Any) -> None:
        raise error

    kept = keeper(written, refuse)
    with pytest.raises(CheckpointMismatch, match=r"says of 'clock' has another form.*move it away"):
        kept.start()
    kept = keeper(written, lambda data: None)
    kept.start()
    kept.stop(0)


def test_a_file_that_goes_after_it_was_compared_ends_the_start_and_no_older_one_is_mixed_in(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = restoration._verify

    def compare_and_lose(path: Path, stretches: list[restoration.Stretch]) -> None:
        compare(path, stretches)
        (path / "keys.0000.npy").unlink()

    with monkeypatch.context() as patched:
        patched.setattr(restoration, "_verify", compare_and_lose)
        with pytest.raises(CheckpointChanged, match=r"keys\.0000\.npy was sound and cannot be read any more"):
            keeper(written, lambda data: None).start()
    kept = keeper(written, lambda data: None)
    kept.start()
    assert kept.restored.damaged == 1
    kept.stop(0)
