"""A broker that is a child process with a folder of its own and one log file in it.

The child gets a session of its own, so that Ctrl-C in a terminal reaches only us and the broker is stopped in
order. It is stopped at the latest when the interpreter ends.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from abc import abstractmethod
from pathlib import Path

from deploy.broker.broker import STOP_TIMEOUT, Broker

LAST_LINES = 15


class ProcessBroker(Broker):
    """A broker run as a plain process; `folder` is temporary unless given."""

    def __init__(self, port: int = 0, folder: Path | None = None) -> None:
        super().__init__(port)
        self._temporary = folder is None
        self.folder = (
            Path(tempfile.mkdtemp(prefix="blendstream-broker-")) if folder is None else folder.resolve()
        )
        self._process: subprocess.Popen[bytes] | None = None
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
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self._command()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

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
        """The last lines of the log and where all of it is."""
        if not self.log.exists():
            return "(it logged nothing)"
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join(["  " + line for line in lines] or ["  (it logged nothing)"])

    def _signal(self, which: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, which)
