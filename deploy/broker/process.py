"""A broker that is a child process with a folder of its own and one log file in it.

The child gets a session of its own, so that Ctrl-C in a terminal reaches only us and the broker is stopped in
order. It does not outlive us: it is stopped when the interpreter ends, and where that is killed, the kernel
sends the child SIGTERM (on Linux, through `setpriv`).
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO

from deploy.broker.broker import STOP_TIMEOUT, Broker, BrokerError, FolderInUse

LAST_LINES = 15
ALARMS = (" ERROR ", " FATAL ", "Exception")

# To the kernel a child's parent is the thread that started it: one that lasts as we do starts them all.
SPAWNER = ThreadPoolExecutor(1, "broker-spawner")


@cache
def tether() -> list[str]:
    """What goes before a command to have it sent SIGTERM when its parent ends; nothing without `setpriv`."""
    command = ["setpriv", "--pdeathsig", "TERM", "--"]
    if shutil.which(command[0]) is None:
        return []
    works = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if works else []


class ProcessBroker(Broker):
    """A broker run as a plain process; `folder` is temporary unless given."""

    def __init__(self, port: int = 0, folder: Path | None = None) -> None:
        super().__init__(port)
        self._temporary = folder is None
        self.folder = (
            Path(tempfile.mkdtemp(prefix="blendstream-broker-")) if folder is None else folder.resolve()
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._logged_before = 0
        atexit.register(self.close)

    @property
    def log(self) -> Path:
        """Where the broker's output goes."""
        return self.folder / "broker.log"

    @property
    def pid(self) -> int | None:
        """The process id while the broker runs."""
        return self._process.pid if self._process is not None and self.alive() else None

    @abstractmethod
    def _command(self) -> list[str]:
        """Prepare what the broker needs on disk and return the command that runs it."""

    def _launch(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BrokerError(f"no data folder can be made at {self.folder}: {error.strerror}") from error
        with self._locked_folder() as lock, self.log.open("ab") as log:
            command = [*tether(), *self._command()]
            self._logged_before = log.tell()
            SPAWNER.submit(self._spawn, command, log, lock).result()

    def _spawn(self, command: list[str], log: IO[bytes], lock: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )

    def _locked_folder(self) -> IO[bytes]:
        """The folder's lock; the child inherits it and holds it while it lives, whoever else ends."""
        lock = (self.folder / "broker.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise FolderInUse(f"another broker runs on the folder {self.folder}") from None
        return lock

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the process with SIGTERM, and with SIGKILL where that does not do."""
        if self._process is None:
            return
        self._signal(signal.SIGCONT)  # a frozen process would not see SIGTERM
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def pause(self) -> None:
        """Freeze the process with SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on with SIGCONT."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the process and remove its folder, if that was temporary."""
        atexit.unregister(self.close)
        self.stop()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def last_words(self) -> str:
        """What the last start logged as an error, else the end of what it logged."""
        if not self.log.exists():
            return "  (it logged nothing)"
        with self.log.open("rb") as log:
            log.seek(self._logged_before)
            lines = log.read().decode(errors="replace").splitlines()
        alarms = [line for line in lines if any(alarm in line for alarm in ALARMS)]
        return "\n".join("  " + line for line in (alarms or lines)[-LAST_LINES:]) or "  (it logged nothing)"

    def _signal(self, which: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, which)
