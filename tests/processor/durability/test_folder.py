"""The folder of checkpoints: whose it is, who may read it, and what is taken for one."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from processor.durability import folder as folders
from processor.durability.errors import FolderRefused
from processor.durability.folder import CheckpointFolder
from tests.processor.durability.keeping import Kept, grown


def test_it_is_made_private_with_all_that_is_in_it(tmp_path: Path) -> None:
    kept, _ = grown(tmp_path / "new" / "state", steps=20)
    kept.write()
    assert kept.path.stat().st_mode & 0o777 == 0o700
    checkpoint = kept.folder.checkpoint(1)
    assert checkpoint.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in checkpoint.iterdir()} == {0o600}
    kept.close()


def try_to_open(path: Path, answer: multiprocessing.SimpleQueue[str]) -> None:
    try:
        CheckpointFolder(path).open()
        answer.put("opened")
    except FolderRefused as error:
        answer.put(str(error))


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answer: multiprocessing.SimpleQueue[str] = context.SimpleQueue()

    def ask() -> str:
        process = context.Process(target=try_to_open, args=(tmp_path, answer))
        process.start()
        process.join()
        return answer.get()

    folder = CheckpointFolder(tmp_path)
    folder.open()
    assert f"another process keeps its checkpoints in {tmp_path}" in ask()
    folder.close()
    assert ask() == "opened"


def test_a_file_is_refused_as_what_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps({"version": 1}))
    with pytest.raises(FolderRefused, match=r"is a file.*LMCache.*choose another path"):
        CheckpointFolder(path).open()
    assert json.loads(path.read_text()) == {"version": 1}


def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("irreplaceable")
    with pytest.raises(FolderRefused, match=r"holds 'thesis\.tex'"):
        CheckpointFolder(tmp_path).open()
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_fresh_volume_is_taken(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    folder = CheckpointFolder(tmp_path)
    folder.open()
    folder.close()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderRefused, match="cannot keep checkpoints"):
        CheckpointFolder(tmp_path / "file" / "state").open()


def test_what_a_crash_left_half_written_is_cleared_away_and_not_taken_for_a_checkpoint(
    tmp_path: Path,
) -> None:
    kept, _ = grown(tmp_path, steps=20)
    kept.write()
    kept.folder.checkpoint(1).rename(tmp_path / "writing-2")
    kept.close()
    other = Kept(tmp_path)
    assert other.restored.manifest is None
    assert not (tmp_path / "writing-2").exists()
    other.close()


def test_one_whose_name_does_not_get_to_the_disk_failed_and_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, fleet = grown(tmp_path, steps=50)
    kept.write()
    kept.write()

    def refuse(path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(folders, "sync_folder", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            kept.write()
    assert kept.folder.numbers() == [2, 1]
    fleet.step()
    kept.write()
    kept.write()
    inodes = [{file.stat().st_ino for file in kept.folder.checkpoint(number).iterdir()} for number in (4, 3)]
    assert not inodes[0] & inodes[1]
    kept.close()


@pytest.mark.parametrize("odd", ["file", "link", "dangling link"])
@pytest.mark.parametrize("name", ["checkpoint-4", "writing-9", "leaving-2"])
def test_what_only_bears_a_name_of_ours_is_in_no_ones_way(tmp_path: Path, name: str, odd: str) -> None:
    path = tmp_path / "state"
    kept, _ = grown(path, steps=50)
    kept.write()
    kept.write()
    kept.close()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.tex").touch()
    if odd == "file":
        (path / name).touch()
    else:
        (path / name).symlink_to(tmp_path / "elsewhere" if odd == "link" else tmp_path / "nowhere")
    for _ in range(2):
        again = Kept(path)
        assert again.restored.damaged == 0
        for _ in range(3):
            again.write()
        again.close()
    assert (tmp_path / "elsewhere" / "thesis.tex").exists()
