"""Child processes of the demo: each with a log of its own, none of them left behind.

A child lives in a session of its own, so that Ctrl-C in a terminal reaches only the demo, which then ends its
children in order. Should the demo be killed, a child notices by the pipe or socket between them that closes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from api.demo.messages import Message, Report, Start

STOP_TIMEOUT: Final = 10.0
"""Seconds from the request to end until a child is killed."""
ANSWER_TIMEOUT: Final = 120.0
"""Seconds that a child may take for one message."""
LAST_LINES: Final = 12


class ChildError(RuntimeError):
    """A child ended by itself or did not answer; the message shows the end of its log."""


class Child:
    """A Python module run as a child process; `folder` keeps its log."""

    def __init__(
        self, name: str, folder: Path, module: str, *arguments: str, descriptors: tuple[int, ...] = ()
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        # -P: a folder called `api` where the demo is run must not stand in for ours.
        command = [sys.executable, "-P", "-m", module, *arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=descriptors,
                env=_environment(),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raise a `ChildError` if it has ended."""
        if not self.alive():
            raise self.error(f"{self.name} ended by itself with status {self._process.returncode}")

    def error(self, what: str) -> ChildError:
        """An error that shows the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return ChildError("\n".join([f"{what}; the end of {self.log}:", *("  " + line for line in lines)]))

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        if self.alive():
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End it in order; one that does not end within `STOP_TIMEOUT` is killed."""
        self.ask_to_stop()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()


class ServerProcess(Child):
    """A cache server of the fleet and the connection to it."""

    def __init__(self, start: Start, logs: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            super().__init__(
                start.name, logs, "api.demo.cache_server", str(descriptor), descriptors=(descriptor,)
            )
        self._connection = Connection(ours.detach())
        self._connection.send(start)

    def ask(self, message: Message) -> None:
        """Send a message; `answer` must follow before the next one."""
        try:
            self._connection.send(message)
        except OSError:
            raise self.error(f"{self.name} is gone") from None

    def answered(self) -> bool:
        """Whether an answer waits to be read."""
        return self._connection.poll(0)

    def answer(self) -> Report:
        """The answer to the last message."""
        if not self._connection.poll(ANSWER_TIMEOUT):
            raise self.error(f"{self.name} did not answer within {ANSWER_TIMEOUT:g} s")
        try:
            report: Report = self._connection.recv()
        except (EOFError, OSError):
            raise self.error(f"{self.name} is gone") from None
        return report

    def ask_to_stop(self) -> None:
        """Close the connection, at which it delivers what it has and ends."""
        self._connection.close()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        super().kill()
        self._connection.close()


def _environment() -> dict[str, str]:
    """Ours, without the settings that a user has for a processor of their own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BLENDSTREAM_")}
