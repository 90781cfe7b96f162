"""The `blendstream` command as processes of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM, Signals

from api.client import Client
from tests.waiting import wait_for

BLENDSTREAM = Path(sys.executable).with_name("blendstream")
START_TIMEOUT = 180.0
"""Seconds until a server must listen; kernels that were never compiled take most of it."""
STOP_TIMEOUT = 10.0


@dataclass
class Process:
    """A running server and what it has said on stderr."""

    popen: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    @property
    def address(self) -> str | None:
        """Where it listens, if it does yet."""
        found = re.search(r"listening on (\S+)", "".join(self.lines))
        return found[1] if found else None

    def serves(self) -> bool:
        """Whether it has started, so that all routes answer."""
        return f"serving on {self.address}" in "".join(self.lines)

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def signal(self, number: Signals) -> None:
        self.popen.send_signal(number)

    def wait(self) -> int:
        """Its exit status, once it has ended, which must be soon."""
        return self.popen.wait(STOP_TIMEOUT)

    def terminate(self) -> int:
        """Ask it to stop; its exit status."""
        self.signal(SIGTERM)
        return self.wait()

    def kill(self) -> int:
        """End it on the spot; its exit status, which is another if it had ended by itself."""
        self.popen.kill()
        return self.popen.wait()

    def read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.lines.append(line)


@contextmanager
def server(*arguments: str, port: int = 0, within: Sequence[str] = ()) -> Iterator[tuple[Process, Client]]:
    """`blendstream serve` on a free port, once its routes answer, and a client; killed if it still runs.

    `within` is a command that runs the one behind it somewhere else, such as `nsenter`.
    """
    with starting(*arguments, port=port, within=within) as (running, client):
        wait_for(lambda: running.serves() or _ended(running), START_TIMEOUT, "the server serves")
        yield running, client


@contextmanager
def starting(*arguments: str, port: int = 0, within: Sequence[str] = ()) -> Iterator[tuple[Process, Client]]:
    """The same from the moment it listens, when its kernels and its state are still being loaded."""
    command = [str(BLENDSTREAM), "serve", "--host", "127.0.0.1", "--port", str(port), "--max-chunks", "65536"]
    running = Process(
        subprocess.Popen(
            [*within, *command, *arguments], stderr=subprocess.PIPE, text=True, env=environment()
        )
    )
    reader = threading.Thread(target=running.read)
    reader.start()
    try:
        address = wait_for(lambda: running.address or _ended(running), START_TIMEOUT, "the server listens")
        with Client(address, timeout=30) as client:
            yield running, client
    finally:
        died = running.popen.poll()
        running.kill()
        reader.join()
        # For whoever reads of a test that failed; pytest keeps it to itself otherwise.
        print(*running.lines[-100:], f"[its status was {died} before it was killed]", sep="")


def blendstream(*arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; it must succeed."""
    done = run_to_its_end(*arguments, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done


def serve_to_its_end(*arguments: str, within: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """`blendstream serve` where it ends by itself: with what it says then."""
    return run_to_its_end("serve", *arguments, within=within, timeout=120)


def run_to_its_end(
    *arguments: str, within: Sequence[str] = (), timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever that is."""
    return subprocess.run(
        [*within, str(BLENDSTREAM), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(),
        check=False,
    )


def environment() -> dict[str, str]:
    """Our environment without settings of Blendstream that a developer may have there; wide tables."""
    kept = {"BLENDSTREAM_KERNEL_CACHE"}
    ours = {name: value for name, value in os.environ.items() if not name.startswith("BLENDSTREAM_")}
    return {**ours, **{name: os.environ[name] for name in kept if name in os.environ}, "COLUMNS": "200"}


def _ended(process: Process) -> str:
    assert process.running, "".join(process.lines)
    return ""
