"""A server in its first moments: what it answers, how it ends when told to, and what it says when it fails.

What holds a start up here is a checkpoint on a disk that does not answer: its manifest is a pipe that nobody
writes into.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.client import Client, ServerError
from tests.e2e.processes import (
    BLENDSTREAM,
    STOP_TIMEOUT,
    blendstream,
    environment,
    run_to_its_end,
    serve_to_its_end,
    server,
    starting,
)
from tests.waiting import wait_for

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)


@dataclass
class Disk:
    """A folder with one checkpoint, which does not answer until `answer` is called."""

    folder: Path
    text: bytes

    @property
    def manifest(self) -> Path:
        return self.folder / "checkpoint-1" / "manifest.json"

    def answer(self) -> None:
        self.manifest.write_bytes(self.text)

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))

    @property
    def arguments(self) -> list[str]:
        return ["--checkpoint-path", str(self.folder), "--checkpoint-interval", "0"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server left that knew twelve keys."""
    folder = tmp_path_factory.mktemp("written") / "state"
    with server("--checkpoint-path", str(folder), "--checkpoint-interval", "0") as (process, client):
        blendstream("emit", "--synthetic", "3", "--chunks", "4", "--url", client.url)
        assert client.stats().num_keys == 12
        assert process.terminate() == 0
    return folder


@pytest.fixture
def disk(written: Path, tmp_path: Path) -> Disk:
    disk = Disk(shutil.copytree(written, tmp_path / "state"), b"")
    disk.text = disk.manifest.read_bytes()
    disk.manifest.unlink()
    os.mkfifo(disk.manifest)
    return disk


def restoring(client: Client) -> bool:
    return client.not_ready() == ["starting: restoring a checkpoint"]


def test_while_a_checkpoint_is_restored_it_lives_and_is_not_ready_and_then_has_the_state(disk: Disk) -> None:
    with starting(*disk.arguments) as (process, client):
        wait_for(lambda: restoring(client), 120)
        assert client.healthy()
        assert "blendstream_ready 0" in client.metrics()
        with pytest.raises(ServerError, match="503: starting: restoring a checkpoint; try again soon"):
            client.stats()
        assert not process.serves()
        disk.answer()
        wait_for(process.serves, 60)
        assert client.stats().num_keys == 12
        assert client.not_ready() == []
        assert process.terminate() == 0


@SIGNALS
def test_a_signal_while_a_checkpoint_is_restored_ends_it_and_leaves_that_as_it_is(
    disk: Disk, number: signal.Signals, tmp_path: Path
) -> None:
    before = disk.names()
    with starting(*disk.arguments, "--uds", str(tmp_path / "socket")) as (process, client):
        wait_for(lambda: restoring(client), 120)
        process.signal(number)
        assert process.wait() == 0
    assert disk.names() == before
    assert not (tmp_path / "socket").exists()
    assert "Traceback" not in "".join(process.lines)


@SIGNALS
def test_a_signal_while_kernels_are_compiled_ends_it(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLENDSTREAM_KERNEL_CACHE", str(tmp_path / "cache"))
    with starting("--checkpoint-path", str(tmp_path / "state")) as (process, client):
        wait_for(lambda: client.not_ready() == ["starting: loading kernels"], 10)
        wait_for(lambda: any((tmp_path / "cache").rglob("*.nbc")), 60, "a kernel is compiled")
        process.signal(number)
        assert process.wait() == 0
    assert not (tmp_path / "state").exists()
    assert "Traceback" not in "".join(process.lines)


@SIGNALS
def test_a_signal_in_the_first_moment_while_python_still_imports_ends_it(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [BLENDSTREAM, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        wait_for(lambda: listens_to_signals(process.pid), 10, "it listens to signals")
        assert "llvmlite" not in Path(f"/proc/{process.pid}/maps").read_text(), "all is imported already"
        process.send_signal(number)
        _, said = process.communicate(timeout=STOP_TIMEOUT)
        assert (process.returncode, said) == (0, "")
    finally:
        process.kill()
        process.wait()


def listens_to_signals(pid: int) -> bool:
    """Whether a process has its handlers in place."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.split("SigCgt:")[1].split()[0], 16)
    # SIGTERM is the last of the two that are taken over; for SIGINT Python itself has one.
    return bool(mask >> (signal.SIGTERM - 1) & 1)


def test_a_start_that_fails_ends_the_process_with_its_reason_alone(disk: Disk) -> None:
    disk.manifest.unlink()
    disk.manifest.write_bytes(disk.text)
    before = disk.names()
    failed = serve_to_its_end("--port", "0", *disk.arguments, "--chunk-size", "64")
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].startswith("blendstream: ")
    assert "was made with --chunk-size 256, and this process has 64" in failed.stderr.splitlines()[-1]
    assert "serving on" not in failed.stderr
    assert "Traceback" not in failed.stderr
    assert disk.names() == before
    (disk.folder.parent / "file").touch()
    failed = serve_to_its_end("--port", "0", "--checkpoint-path", str(disk.folder.parent / "file"))
    assert failed.returncode == 1
    assert "is a file, and checkpoints are a folder" in failed.stderr.splitlines()[-1]


def test_commands_tell_in_a_line_that_the_server_is_starting(disk: Disk) -> None:
    with starting(*disk.arguments) as (_, client):
        wait_for(lambda: restoring(client), 120)
        for command in (
            ["streams"],
            ["emit", "--synthetic", "1"],
            ["lookup", "--key", "ab", "--model-name", "m"],
        ):
            done = run_to_its_end(*command, "--url", client.url)
            assert done.returncode == 1
            assert "starting: restoring a checkpoint; try again soon" in done.stderr
            assert done.stderr.count("\n") == 1
