"""The spool's log gives back what was put into it, in order, after any crash, and never anything else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from producer.spool.log import SpoolError, SpoolFull, SpoolInUse, SpoolLog
from producer.spool.segment import HEADER, frame
from tests.producer.disk import (
    FailingSync,
    after_crash,
    files_limited_to,
    removed_files_still_open,
    segments,
)

MEBIBYTE = 2**20
SEGMENT = 256
"""Bytes; a few records each, so that short histories have several segments."""


def opened(folder: Path, max_bytes: int = MEBIBYTE) -> SpoolLog:
    return SpoolLog(folder, max_bytes, SEGMENT)


def fill(log: SpoolLog, values: list[bytes]) -> None:
    for value in values:
        log.append(b"key", value)


def contents(log: SpoolLog) -> dict[int, bytes]:
    """What the log holds by index, as its reader finds it."""
    records = [log.read(index) for index in range(log.first, log.next)]
    return {record.index: record.value for record in records if record is not None}


class SpoolMachine(RuleBasedStateMachine):
    """Appends, acknowledgements, restarts and crashes in any order, beside a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="spool-"))
        self.folder = self.root / "spool"
        self.expected: dict[int, bytes] = {}
        self.last_segment: dict[int, int] = {}  # where each record written to it since the opening ends
        self.log = opened(self.folder)

    @initialize()
    def begin(self) -> None:
        assert (self.log.first, self.log.next) == (0, 0)

    @rule(value=st.binary(max_size=100))
    def append(self, value: bytes) -> None:
        index = self.log.append(b"key", value)
        assert index not in self.expected
        self.expected[index] = value
        path = segments(self.folder)[-1]
        if path.stat().st_size == len(HEADER) + len(frame(index, b"key", value)):
            self.last_segment = {}
        self.last_segment[index] = path.stat().st_size

    @rule(share=st.floats(0, 1))
    def acknowledge(self, share: float) -> None:
        upto = self.log.first + round(share * (self.log.next - self.log.first))
        self.log.acknowledge(upto)
        self.expected = {index: value for index, value in self.expected.items() if index >= upto}

    @rule()
    def skip(self) -> None:
        self.log.skip()

    @rule(first=st.floats(0, 1))
    def go_back(self, first: float) -> None:
        index = self.log.first + int(first * (self.log.next - self.log.first))
        if index < self.log.next:
            found = self.log.read(index)
            assert (found and found.value) == self.expected.get(index)

    @rule()
    def restart(self) -> None:
        self.log.close()
        assert bool(segments(self.folder)) or not self.expected
        self.log = opened(self.folder)
        self.last_segment = {}

    @rule(share=st.floats(0, 1))
    def crash(self, share: float) -> None:
        """The process ends with the last segment's last writes cut at any byte."""
        copy = after_crash(self.folder)
        self.log.close()
        shutil.rmtree(self.folder)
        copy.rename(self.folder)
        torn = False
        if self.last_segment:
            path = segments(self.folder)[-1]
            cut = round(share * path.stat().st_size)
            os.truncate(path, cut)
            torn = cut not in (0, len(HEADER), *self.last_segment.values())
            for index, end in self.last_segment.items():
                if end > cut:
                    self.expected.pop(index, None)
        self.log = opened(self.folder)
        assert self.log.torn == torn
        self.last_segment = {}

    @invariant()
    def holds_what_was_appended(self) -> None:
        assert contents(self.log) == self.expected

    @invariant()
    def counts_the_bytes_on_disk(self) -> None:
        assert self.log.size == sum(path.stat().st_size for path in segments(self.folder))

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.root)


TestSpoolMachine = SpoolMachine.TestCase
TestSpoolMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=12), st.data())
def test_a_flipped_bit_costs_the_rest_of_its_segment_and_yields_nothing_false(
    tmp_path: Path, values: list[bytes], data: st.DataObject
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path)) / "spool"
    log = opened(folder)
    fill(log, values)
    log.close()
    found = segments(folder)
    path = data.draw(st.sampled_from(found))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(len(HEADER), len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    log = opened(folder)
    held = contents(log)
    log.close()
    assert held.items() <= dict(enumerate(values)).items()
    lost = sorted(set(range(len(values))) - set(held))
    first = int(path.stem)
    after = next((int(other.stem) for other in found if other > path), len(values))
    assert lost == list(range(lost[0], after)), "everything from the damage to the segment's end, and no more"
    ends = len(HEADER)
    for index in range(first, lost[0]):
        ends += len(frame(index, b"key", values[index]))
    assert place >= ends, "the records before the damage are intact"


def test_the_acknowledged_do_not_come_back(tmp_path: Path) -> None:
    log = opened(tmp_path / "spool")
    fill(log, [b"a", b"b", b"c"])
    log.acknowledge(2)
    copy = after_crash(tmp_path / "spool")
    log.close()
    assert contents(opened(copy)) == {2: b"c"}


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 16, b"\0" * 15, b"\1" * 17])
def test_without_its_record_of_acknowledgements_all_that_is_there_comes_again(
    tmp_path: Path, content: bytes | None
) -> None:
    log = opened(tmp_path)
    fill(log, [b"a", b"b", b"c"])
    log.acknowledge(2)
    log.close()
    kept = tmp_path / "acknowledged"
    if content is None:
        kept.unlink()
    else:
        kept.write_bytes(content)
    assert contents(opened(tmp_path)) == {0: b"a", 1: b"b", 2: b"c"}


def test_what_is_appended_after_a_lost_tail_is_never_taken_for_acknowledged(tmp_path: Path) -> None:
    """A machine's crash may keep the acknowledgement of a record and lose the record."""
    log = opened(tmp_path / "spool")
    fill(log, [b"a", b"b", b"c"])
    log.acknowledge(3)
    copy = after_crash(tmp_path / "spool")
    log.close()
    (segment,) = segments(copy)
    os.truncate(segment, len(HEADER) + len(frame(0, b"key", b"a")))
    log = opened(copy)
    assert contents(log) == {}
    log.append(b"key", b"d")
    log.close()
    assert list(contents(opened(copy)).values()) == [b"d"]


def test_a_record_is_found_again_after_one_behind_it_that_is_not_there(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(b"key", b"a")
    log.skip()
    log.append(b"key", b"c")
    for index, value in ((0, b"a"), (1, None), (0, b"a"), (2, b"c"), (1, None), (2, b"c"), (0, b"a")):
        found = log.read(index)
        assert (found and found.value) == value
    log.close()


def test_segments_go_when_they_are_acknowledged_and_the_last_at_the_end(tmp_path: Path) -> None:
    log = opened(tmp_path)
    fill(log, [bytes(100)] * 6)
    starts = [int(path.stem) for path in segments(tmp_path)]
    assert len(starts) == 3
    log.acknowledge(starts[1] - 1)
    assert len(segments(tmp_path)) == 3
    log.acknowledge(starts[1])
    assert [int(path.stem) for path in segments(tmp_path)] == starts[1:]
    log.acknowledge(log.next)
    assert [int(path.stem) for path in segments(tmp_path)] == starts[2:]
    log.close()
    assert segments(tmp_path) == []
    assert opened(tmp_path).next == 6


def test_at_the_bound_records_are_refused_until_older_ones_have_gone(tmp_path: Path) -> None:
    log = opened(tmp_path, max_bytes=1_000)
    with pytest.raises(SpoolFull, match=r"has reached its bound of 1000 bytes"):
        fill(log, [bytes(50)] * 1_000)
    held = log.next
    assert 0 < sum(path.stat().st_size for path in segments(tmp_path)) <= 1_000
    with pytest.raises(SpoolFull):
        log.append(b"key", bytes(50))
    assert log.next == held
    log.acknowledge(held // 2)
    assert log.append(b"key", bytes(50)) == held
    log.close()
    assert len(contents(opened(tmp_path, max_bytes=1_000))) == held + 1 - held // 2


@pytest.mark.parametrize("room", [0, 4, 8, 20, 50, 100])
def test_a_write_that_the_disk_cuts_short_leaves_nothing_behind(tmp_path: Path, room: int) -> None:
    log = opened(tmp_path / "spool")
    with files_limited_to(room), pytest.raises(OSError):
        fill(log, [bytes(20)] * 10)
    held = log.next
    assert contents(log) == dict.fromkeys(range(held), bytes(20))
    crashed = opened(after_crash(tmp_path / "spool"))
    assert (crashed.next, crashed.torn) == (held, 0)
    log.append(b"key", b"later")
    assert contents(log)[held] == b"later"
    log.close()


def test_a_full_disk_has_room_again_when_what_is_on_it_is_acknowledged(tmp_path: Path) -> None:
    log = SpoolLog(tmp_path, MEBIBYTE)
    fill(log, [bytes(100)] * 3)
    (segment,) = segments(tmp_path)
    with files_limited_to(segment.stat().st_size + 50):
        for _ in range(5):
            with pytest.raises(OSError):
                log.append(b"key", bytes(1_000))
            log.skip()
        assert len(segments(tmp_path)) <= 2
        log.acknowledge(log.next)
        assert not segment.exists()
        assert log.append(b"key", bytes(100)) == 8
    assert contents(log) == {8: bytes(100)}
    log.close()


@pytest.mark.parametrize("which", [0, 1, 2, 3, 4])
def test_what_the_disk_did_not_sync_is_synced_the_next_time_and_all_else_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    log = opened(tmp_path)
    fill(log, [bytes(100)] * 6)
    names = [*(path.name for path in segments(tmp_path)), "acknowledged", tmp_path.name]
    disk = FailingSync(monkeypatch)
    disk.failing = {names[which]}
    for attempt in (1, 2):
        with pytest.raises(OSError, match="Input/output error"):
            log.sync()
        assert disk.refused == [names[which]] * attempt
        assert set(disk.synced) == set(names) - disk.failing
    disk.failing.clear()
    log.sync()
    assert names[which] in disk.synced
    disk.synced.clear()
    log.sync()
    assert disk.synced == [], "everything is on disk"
    log.close()


def test_segments_that_are_gone_are_not_held_for_a_disk_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    fill(log, [bytes(100)] * 6)
    ended = [path.name for path in segments(tmp_path)][:-1]
    disk = FailingSync(monkeypatch)
    disk.failing = set(ended)
    with pytest.raises(OSError, match="Input/output error"):
        log.sync()
    log.acknowledge(log.next)
    assert len(removed_files_still_open(tmp_path)) == len(ended) == 2
    with pytest.raises(OSError, match="Input/output error"):
        log.sync()
    assert removed_files_still_open(tmp_path) == []
    log.sync()
    log.close()


def test_a_second_process_is_told_that_the_folder_is_taken(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(SpoolInUse):
        opened(tmp_path)
    program = "import sys, pathlib, producer.spool.log as log; log.SpoolLog(pathlib.Path(sys.argv[1]), 1)"
    run = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    assert f"SpoolInUse: another emitter spools in {tmp_path}; each needs a folder of its own" in run.stderr
    log.close()
    opened(tmp_path).close()


def test_a_segment_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}.segment"
    path.write_bytes(b"blspool\x02 whatever is new")
    with pytest.raises(SpoolError, match=r"segment is of a version that this one cannot read"):
        opened(tmp_path)
    assert path.exists()


def test_only_its_owner_can_read_a_spool(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "spool"
    log = opened(folder)
    log.append(b"key", b"tokens")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    log.close()


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.segment", "README"):
        (tmp_path / name).write_text("mine")
    log = opened(tmp_path)
    log.append(b"key", b"a")
    log.acknowledge(1)
    log.close()
    assert (tmp_path / "notes.segment").read_text() == (tmp_path / "README").read_text() == "mine"
