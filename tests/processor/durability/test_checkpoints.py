"""Checkpoints written and restored: the same state, at one instant, whatever goes on meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from processor.durability.errors import CheckpointAbandoned, CheckpointMismatch
from processor.state.directory import KeyDirectory
from tests.processor.durability.keeping import Kept, answers, grown
from tests.processor.state.fleet import CHUNK_SIZE, Fleet, directory
from tests.producer.disk import files_limited_to

pytestmark = pytest.mark.usefixtures("way_of_restoring")


def test_a_restored_directory_answers_as_the_one_that_was_written_and_goes_on_like_it(tmp_path: Path) -> None:
    kept, fleet = grown(tmp_path)
    kept.write()
    kept.close()
    other = Kept(tmp_path)
    assert answers(other.held) == answers(kept.held)
    twin = Fleet(other.held, 0, fleet.chunks)
    twin.random.bit_generator.state = fleet.random.bit_generator.state
    twin.seq = fleet.seq
    for _ in range(5):
        for _ in range(60):
            fleet.step()
            twin.step()
            other.held.parts.mapped.move_next(other.held.parts.lock)
        assert answers(other.held) == answers(kept.held)
    other.close()


def test_what_happens_while_a_checkpoint_is_written_is_not_in_it(tmp_path: Path) -> None:
    kept, fleet = grown(tmp_path)
    kept.write()
    for _ in range(3):
        before = answers(kept.held)
        kept.write(pause=fleet.step)
        kept.close()
        other = Kept(tmp_path)
        assert answers(other.held) == before
        other.close()
        kept.folder.open()


def test_checkpoint_upon_checkpoint_restores_the_last_state(tmp_path: Path) -> None:
    kept, fleet = grown(tmp_path, steps=100)
    for round in range(12):
        for _ in range(round % 4):
            fleet.step()
        kept.write(pause=fleet.step if round % 2 else lambda: None)
    kept.write()
    kept.close()
    other = Kept(tmp_path)
    assert answers(other.held) == answers(kept.held)
    other.close()


def test_the_two_that_are_kept_share_no_file_and_unchanged_segments_are_not_written_anew(
    tmp_path: Path,
) -> None:
    kept, fleet = grown(tmp_path)
    first = kept.write()
    assert first.written == first.bytes
    kept.write()
    third = kept.write()
    assert third.written < third.bytes / 2
    fleet.store_new(1)
    fourth = kept.write()
    assert third.written < fourth.written < fourth.bytes
    assert kept.folder.numbers() == [4, 3]
    inodes = [{file.stat().st_ino for file in kept.folder.checkpoint(number).iterdir()} for number in (4, 3)]
    assert not inodes[0] & inodes[1]
    kept.close()
    other = Kept(tmp_path)
    assert answers(other.held) == answers(kept.held)
    assert other.write().written < first.written
    other.close()


def test_without_hard_links_everything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, _ = grown(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "link", refuse)
    reports = [kept.write() for _ in range(3)]
    assert reports[2].written == reports[2].bytes
    kept.close()
    other = Kept(tmp_path)
    assert answers(other.held) == answers(kept.held)
    other.close()


def test_a_full_disk_leaves_the_checkpoints_there_are_and_the_next_one_holds_everything(
    tmp_path: Path,
) -> None:
    kept, fleet = grown(tmp_path)
    kept.write()
    before = answers(kept.held)
    for _ in range(50):
        fleet.step()
    with files_limited_to(3_000), pytest.raises(OSError, match="too large"):
        kept.write()
    assert [entry.name for entry in tmp_path.iterdir() if "writing" in entry.name] == []
    kept.close()
    other = Kept(tmp_path)
    assert answers(other.held) == before
    other.close()
    kept.folder.open()
    fleet.step()
    kept.write()
    kept.close()
    other = Kept(tmp_path)
    assert answers(other.held) == answers(kept.held)
    other.close()


def test_one_that_is_given_up_leaves_the_one_before(tmp_path: Path) -> None:
    kept, fleet = grown(tmp_path)
    kept.write()
    before = answers(kept.held)
    fleet.store_new(10)

    def give_up() -> None:
        raise CheckpointAbandoned("no time")

    with pytest.raises(CheckpointAbandoned):
        kept.write(give_up)
    kept.close()
    other = Kept(tmp_path)
    assert answers(other.held) == before
    other.close()


def test_a_directory_without_blend_is_indexed_when_it_is_restored_with_it(tmp_path: Path) -> None:
    held = directory(blend=False)
    kept, with_blend = Kept(tmp_path, held), directory()
    fleets = [Fleet(held, 5, 300), Fleet(with_blend, 5, 300)]
    for _ in range(400):
        for fleet in fleets:
            fleet.step()
    kept.write()
    kept.close()
    other = Kept(tmp_path)
    told, expected = answers(other.held), answers(with_blend)
    assert found(told) == found(expected)
    assert told["stats"]["blend"] == expected["stats"]["blend"]
    assert told["stats"]["blend"][1] > 100
    # Off again, and on again.
    other.write()
    other.close()
    off = Kept(tmp_path, directory(blend=False))
    assert answers(off.held)["stats"]["blend"] == (0, 0, 0, 0)
    for fleet in (Fleet(off.held, 6, 300), Fleet(with_blend, 6, 300)):
        fleet.seq = 1000
        for _ in range(200):
            fleet.step()
    off.write()
    off.close()
    on = Kept(tmp_path)
    told, expected = answers(on.held), answers(with_blend)
    assert found(told) == found(expected)
    assert told["stats"]["blend"] == expected["stats"]["blend"]
    on.close()


def found(told: dict[str, list[list[object]]]) -> list[list[int]]:
    """Where a query has matches; which of several chunks with one content is named depends on their order."""
    return [[match.cur_st for match in matches] for matches in told["matches"]]  # type: ignore[attr-defined]


def test_what_the_gate_knew_comes_along(tmp_path: Path) -> None:
    kept, _ = grown(tmp_path, steps=10)
    kept.write()
    kept.close()
    other = Kept(tmp_path)
    assert other.gate.capture() == kept.gate.capture()
    other.close()


def test_another_chunk_size_is_refused_with_both_named(tmp_path: Path) -> None:
    kept, _ = grown(tmp_path, steps=10)
    kept.write()
    kept.close()
    with pytest.raises(CheckpointMismatch, match=f"--chunk-size {CHUNK_SIZE}, and this process has 8"):
        Kept(tmp_path, KeyDirectory(chunk_size=8, max_chunks=1000))


def test_a_state_that_does_not_fit_is_refused_and_a_larger_one_takes_it(tmp_path: Path) -> None:
    kept, _ = grown(tmp_path)
    kept.write()
    kept.close()
    with pytest.raises(CheckpointMismatch, match="--max-chunks"):
        Kept(tmp_path, directory(max_chunks=64))
    larger = Kept(tmp_path, directory(max_chunks=100_000))
    assert answers(larger.held) == answers(kept.held)
    larger.close()
