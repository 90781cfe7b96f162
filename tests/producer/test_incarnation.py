"""Incarnations grow over restarts, whatever the clock does, and none is used that the disk has not taken."""

from __future__ import annotations

import errno
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from producer.events import MAX_INT
from producer.incarnation import IncarnationFileError, IncarnationNotKept, next_incarnation
from tests.chaos.disks import small_disk
from tests.producer.disk import files_limited_to


def test_the_first_incarnation_is_the_start_in_whole_seconds(tmp_path: Path) -> None:
    assert next_incarnation(tmp_path / "a" / "incarnation", lambda: 1_700_000_000.9) == 1_700_000_000


def test_a_restart_within_the_same_second_gets_a_greater_one(tmp_path: Path) -> None:
    path = tmp_path / "incarnation"
    assert [next_incarnation(path, lambda: 100.5) for _ in range(3)] == [100, 101, 102]


def test_a_clock_set_back_does_not_take_incarnations_back(tmp_path: Path) -> None:
    path = tmp_path / "incarnation"
    assert next_incarnation(path, lambda: 1_000.0) == 1_000
    assert next_incarnation(path, lambda: 10.0) == 1_001
    assert next_incarnation(path, lambda: 2_000.0) == 2_000


def test_starts_at_one_moment_never_share_an_incarnation(tmp_path: Path) -> None:
    path = tmp_path / "incarnation"
    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(lambda _: next_incarnation(path, lambda: 5.0), range(40)))
    assert sorted(started) == list(range(5, 45))


def test_nothing_but_the_file_is_left_behind(tmp_path: Path) -> None:
    next_incarnation(tmp_path / "incarnation", lambda: 7.0)
    assert [path.name for path in tmp_path.iterdir()] == ["incarnation"]
    assert (tmp_path / "incarnation").read_text() == "7\n"


def test_a_start_cut_short_before_the_rename_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "incarnation"
    next_incarnation(path, lambda: 7.0)
    (tmp_path / "incarnation.new").write_bytes(b"\0\0")
    assert next_incarnation(path, lambda: 7.0) == 8


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"abc",
        b"-5",
        b"1.5",
        b" 7",
        b"7\n\n",
        b"\xff\xfe",
        b"7" * 1_000_000,
        b"\0" * 8,
        str(MAX_INT).encode(),
    ],
)
def test_a_file_with_anything_else_in_it_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "incarnation"
    path.write_bytes(content)
    with pytest.raises(IncarnationFileError, match="must hold an incarnation") as caught:
        next_incarnation(path, lambda: 100.0)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert path.read_bytes() == content


def test_the_last_incarnation_there_is_can_be_reached(tmp_path: Path) -> None:
    path = tmp_path / "incarnation"
    path.write_text(str(MAX_INT - 1))
    assert next_incarnation(path, lambda: 1.0) == MAX_INT


def test_without_room_for_it_no_incarnation_is_given_and_the_last_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "incarnation"
    next_incarnation(path, lambda: 7.0)
    with (
        files_limited_to(1),
        pytest.raises(IncarnationNotKept, match=r"File too large; .* once it can") as caught,
    ):
        next_incarnation(path, lambda: 10.0)
    assert f"cannot be kept in {path}: " in str(caught.value)
    assert caught.value.errno == errno.EFBIG
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("incarnation", "7\n")]
    assert next_incarnation(path, lambda: 7.0) == 8


def test_a_folder_that_cannot_be_made_is_told_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "incarnation"
    with pytest.raises(IncarnationNotKept, match=f"kept in {path}: (File exists|Not a directory)"):
        next_incarnation(path)


START = "import sys, pathlib, producer.incarnation as i; print(i.next_incarnation(pathlib.Path(sys.argv[1])))"


@pytest.mark.needs("namespaces")
def test_on_a_full_disk_a_start_says_so_and_succeeds_once_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2**20) as disk:

        def start() -> subprocess.CompletedProcess[str]:
            command = [*disk.within, sys.executable, "-c", START, str(disk.path / "incarnation")]
            return subprocess.run(command, capture_output=True, text=True, check=False)

        first = int(start().stdout)
        disk.fill()
        assert (
            f"kept in {disk.path}/incarnation: No space left on device; the emitter starts" in start().stderr
        )
        assert (disk.seen / "incarnation").read_text() == f"{first}\n"
        disk.make_room()
        assert int(start().stdout) > first
