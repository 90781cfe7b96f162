"""Damage to any file of a checkpoint: the one before is restored, or none, and never a wrong answer."""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from processor.durability import manifest as manifests
from processor.durability import restoration
from processor.durability.checkpoint import COMPARE_EVERY
from processor.durability.inspection import inspect
from processor.durability.manifest import MANIFEST
from processor.state.directory import KeyDirectory
from tests.processor.durability.keeping import Kept, answers, grown
from tests.processor.state.fleet import directory


def cut_short(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def cut_off_the_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = random.Random(path.name).randrange(8 * len(data))
    data[at // 8] ^= 1 << at % 8
    path.write_bytes(data)


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def remove(path: Path) -> None:
    path.unlink()


def make_it_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [cut_short, cut_off_the_last_byte, empty, flip_a_bit, append, remove, make_it_a_folder]


@pytest.fixture(autouse=True)
def every_segment_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the large ones of a large state are."""
    monkeypatch.setattr(restoration, "MAPPED_FROM_BYTES", 0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder with two checkpoints, and the answers of each, the current one's first."""
    path = tmp_path_factory.mktemp("checkpoints")
    kept, fleet = grown(path, steps=300)
    told: list[dict[str, Any]] = []
    for _ in range(2):
        told.insert(0, answers(kept.held))
        kept.write()
        for _ in range(30):
            fleet.step()
    kept.close()
    return path, told


def opened(path: Path) -> tuple[KeyDirectory, int]:
    kept = Kept(path, directory(max_chunks=5_000))
    kept.close()
    return kept.held, kept.restored.damaged


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.replace("_", " "))
def test_whatever_file_is_damaged_the_checkpoint_before_is_restored(
    written: tuple[Path, list[dict[str, Any]]],
    damage: Callable[[Path], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, (_, before) = written
    names = sorted(file.name for file in (path / "checkpoint-2").iterdir())
    assert len(names) > 25
    for name in names:
        shutil.rmtree(tmp_path, ignore_errors=True)
        shutil.copytree(path, tmp_path)
        damage(tmp_path / "checkpoint-2" / name)
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            held, damaged = opened(tmp_path)
        assert damaged == 1, name
        assert answers(held) == before, name
        assert "checkpoint-2 is damaged and passed over" in caplog.text
        assert name in caplog.text


def test_if_both_are_damaged_the_start_is_cold(
    written: tuple[Path, list[dict[str, Any]]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = written
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    flip_a_bit(tmp_path / "checkpoint-1" / "tokens.0000.npy")
    cut_short(tmp_path / "checkpoint-2" / "gate.json")
    fresh = answers(directory())
    with caplog.at_level(logging.ERROR):
        held, damaged = opened(tmp_path)
    assert damaged == 2
    assert answers(held) == fresh
    assert "cold start: no checkpoint there is sound" in caplog.text


def test_after_damage_the_next_checkpoint_takes_the_damaged_ones_place(
    written: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    path, (_, before) = written
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    flip_a_bit(tmp_path / "checkpoint-2" / "keys.0000.npy")
    kept = Kept(tmp_path, directory(max_chunks=5_000))
    assert kept.folder.numbers() == [2, 1]
    kept.write()
    assert kept.folder.numbers() == [3, 1]
    kept.close()
    held, damaged = opened(tmp_path)
    assert damaged == 0
    assert answers(held) == before


def test_a_sound_copy_elsewhere_restores(written: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    path, (now, _) = written
    shutil.copytree(path, tmp_path / "elsewhere")
    held, damaged = opened(tmp_path / "elsewhere")
    assert damaged == 0
    assert answers(held) == now


def test_what_is_spoiled_while_it_is_linked_on_is_found_and_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, _ = grown(tmp_path, steps=300)
    kept.write()
    kept.write()
    flip_a_bit(tmp_path / "checkpoint-1" / "tokens.0000.npy")
    for _ in range(2 * COMPARE_EVERY):
        kept.write()
    kept.close()
    assert [found.problems for found in inspect(tmp_path)] == [[], []]
    assert "is damaged, and written anew: tokens.0000.npy" in caplog.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (("documents", "gate", "name"), "../gate.json"),
        (("documents", "gate", "name"), "gate\0.json"),
        (("arrays", "keys", "segments", 0, "file", "name"), "/etc/passwd"),
        (("arrays", "keys", "segments", 0, "rows"), -1),
        (("arrays", "scope_refs", "shape"), [-1]),
        (("arrays", "scope_refs", "shape"), [1 << 50]),
        (("arrays", "lists", "shape"), [3]),
        (("arrays", "keys", "shape"), []),
        (("created",), 1e308),
        (("number",), 7),
    ],
)
def test_a_manifest_that_says_what_cannot_be_is_damage(
    written: tuple[Path, list[dict[str, Any]]], tmp_path: Path, field: tuple[str | int, ...], value: Any
) -> None:
    path, (_, before) = written
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    manifest = tmp_path / "checkpoint-2" / MANIFEST
    told = json.loads(manifest.read_bytes())["manifest"]
    place: Any = told
    for step in field[:-1]:
        place = place[step]
    place[field[-1]] = value
    manifest.write_bytes(manifests._envelop(json.dumps(told).encode()))
    held, damaged = opened(tmp_path)
    assert damaged == 1
    assert answers(held) == before
