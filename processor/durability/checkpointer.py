"""When checkpoints are written: by the clock, when asked, and at the end.

One thread writes them, so there is never more than one under way. Whoever asks waits for one that began
after the question. A failure is counted and logged, and the next one tries again: the stream goes on
meanwhile, and the checkpoints before stand.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from processor.durability.checkpoint import CheckpointWriter, Report
from processor.durability.errors import CheckpointAbandoned, CheckpointError
from processor.durability.quiesce import Capture

logger = logging.getLogger(__name__)


class Counts(NamedTuple):
    """What came of the attempts so far; `failure` says why the last one failed, empty if it did not."""

    last: Report | None = None
    successes: int = 0
    failures: int = 0
    failure: str = ""


class Checkpointer:
    """The thread that writes checkpoints.

    Args:
        writer: of one state into one folder.
        interval: seconds from the start of one to the start of the next; 0 for none by the clock.
        on_durable: told what was captured, once it is on disk.
    """

    def __init__(
        self, writer: CheckpointWriter, interval: float, on_durable: Callable[[Capture], None]
    ) -> None:
        self._writer = writer
        self._interval = interval
        self._on_durable = on_durable
        self._wake = threading.Condition()
        self._asked: list[Future[Report]] = []
        self._ending = False
        self._deadline = float("inf")
        self._counts = Counts()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Begin to keep time."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Write a last one, if it takes no longer than `seconds` with the one under way, and end."""
        with self._wake:
            self._ending = True
            self._deadline = time.monotonic() + seconds
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def ask(self) -> Future[Report]:
        """Have a checkpoint written; the result comes when it is on disk, or is a `CheckpointError`.

        Raises:
            CheckpointAbandoned: it is too late for that.
        """
        asked: Future[Report] = Future()
        with self._wake:
            if self._ending:
                raise CheckpointAbandoned("the process is ending, and writes its last checkpoint")
            self._asked.append(asked)
            self._wake.notify()
        return asked

    def counts(self) -> Counts:
        """The last one that was written, how many were, and how many failed and why."""
        return self._counts

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._asked or self._ending, self._until(due))
                asked = [future for future in self._asked if future.set_running_or_notify_cancel()]
                self._asked = []
                last = self._ending
            due = time.monotonic() + self._interval
            self._write(asked)
            if last:
                return

    def _until(self, due: float) -> float | None:
        return max(0.0, due - time.monotonic()) if self._interval else None

    def _write(self, asked: list[Future[Report]]) -> None:
        try:
            report, captured = self._writer.write(self._check_time)
        except Exception as error:
            failures = self._counts.failures + 1
            self._counts = self._counts._replace(failures=failures, failure=str(error) or repr(error))
            # A full disk needs no traceback; what nobody foresaw does.
            foreseen = isinstance(error, (OSError, CheckpointError))
            logger.error(
                "no checkpoint was written, and those before stand: %s",
                error,
                exc_info=None if foreseen else error,
            )
            failure = error if isinstance(error, CheckpointError) else CheckpointError(str(error))
            for future in asked:
                future.set_exception(failure)
            return
        self._counts = Counts(report, self._counts.successes + 1, self._counts.failures)
        logger.info(
            "checkpoint %d is on disk: %.1f MB, %.1f of them new, in %.2f s",
            report.number, report.bytes / 1e6, report.written / 1e6, report.duration,
        )  # fmt: skip
        try:
            self._on_durable(captured)
        except Exception:
            logger.exception("what follows a checkpoint failed")
        for future in asked:
            future.set_result(report)

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise CheckpointAbandoned("the process had to end before it was written")
