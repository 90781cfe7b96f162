"""Runs the two sides of a measurement as processes of their own, in turns, and reports the medians.

Machines are noisy and drift, so a round of ours and a round of the peer's alternate; a ratio is then taken
between medians over the same stretch of time. Without a peer, ours runs alone.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from bench.worker import Figures, Parameters

ROOT = Path(__file__).resolve().parent.parent
PEER_VARIABLE = "PEER_PYTHON"
"""Names the interpreter that has LMCache installed."""


class WorkerError(RuntimeError):
    """A worker ended or answered nonsense; the message carries the end of what it printed."""


def peer_python() -> str | None:
    """The peer's interpreter, if one is named."""
    return os.environ.get(PEER_VARIABLE) or None


def peer_environment() -> dict[str, str]:
    """The environment of a peer process: it finds this package, and does not log what it does."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "LMCACHE_LOG_LEVEL": "ERROR"}


class Worker:
    """A worker process (`bench.worker`): prepared on entry, asked for rounds, ended on exit."""

    def __init__(
        self, interpreter: str, module: str, parameters: Parameters, environment: Mapping[str, str]
    ) -> None:
        self._command = [interpreter, "-m", module]
        self._parameters = parameters
        self._environment = dict(environment)

    def __enter__(self) -> Worker:
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=self._environment,
        )
        try:
            self._ask(self._parameters)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def round(self) -> Figures:
        """The figures of one round."""
        return self._ask({})

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _ask(self, question: Parameters) -> Figures:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer: Figures = json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError) as error:
            self._process.wait()
            self._errors.seek(0)
            printed = self._errors.read()[-2000:]
            raise WorkerError(f"{' '.join(self._command)} failed:\n{printed}") from error
        return answer


def alternate(
    task: str, parameters: Parameters, rounds: int, peer_parameters: Parameters
) -> tuple[Figures, Figures]:
    """Medians over `rounds` rounds of `bench.ours.TASK` and `bench.peer.TASK`; the peer's are empty
    without one.
    """
    ours: list[Figures] = []
    theirs: list[Figures] = []
    with ExitStack() as stack:
        us = stack.enter_context(Worker(sys.executable, f"bench.ours.{task}", parameters, os.environ))
        peer = peer_python()
        them = peer and stack.enter_context(
            Worker(peer, f"bench.peer.{task}", peer_parameters, peer_environment())
        )
        for _ in range(rounds):
            ours.append(us.round())
            if them:
                theirs.append(them.round())
    return medians(ours), medians(theirs)


def alone(task: str, parameters: Parameters, rounds: int) -> Figures:
    """Medians over `rounds` rounds of `bench.ours.TASK`, for what the peer has nothing like."""
    with Worker(sys.executable, f"bench.ours.{task}", parameters, os.environ) as us:
        return medians([us.round() for _ in range(rounds)])


def medians(rounds: list[Figures]) -> Figures:
    """The median of each figure over the rounds that have it."""
    names = {name for figures in rounds for name in figures}
    return {
        name: statistics.median([figures[name] for figures in rounds if name in figures]) for name in names
    }
