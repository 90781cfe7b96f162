"""Everything about checkpoints that the service has to know: start, ask, stop.

On start the folder is locked, the newest sound checkpoint restored and the clock set going; on stop one last
checkpoint is written. In between nothing here is ever in the stream's way, save for the moment in which the
state is captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processor.durability.checkpoint import SEGMENT_BYTES, CheckpointWriter, Report
from processor.durability.checkpointer import Checkpointer, Counts
from processor.durability.errors import CheckpointAbandoned, CheckpointMismatch
from processor.durability.folder import CheckpointFolder
from processor.durability.quiesce import Capture, Freeze, Gate
from processor.durability.restoration import Restored, restore
from processor.state.parts import Parts
from processor.state.snapshot import Shadow


@dataclass(frozen=True, slots=True)
class Component:
    """Something beside the directory that a checkpoint holds.

    Attributes:
        freeze: see `quiesce.Freeze`.
        restore: takes what `freeze` came to; before the first batch.
    """

    freeze: Freeze
    restore: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """What metrics show of checkpoints.

    Attributes:
        last: the last one that this process wrote.
        newest: the instant that the newest sound one is of, in seconds since the epoch; None without one.
        successes: how many were written.
        failures: how many could not be.
        failure: why the last attempt failed; empty if it did not.
        damaged: how many were found damaged at the start, and passed over.
        restored_from: the instant that the restored one was of; None after a cold start.
        restore_seconds: what restoring took.
    """

    last: Report | None
    newest: float | None
    successes: int
    failures: int
    failure: str
    damaged: int
    restored_from: float | None
    restore_seconds: float


class Keeper:
    """Keeps one state in one folder.

    Args:
        path: of the folder.
        interval: seconds from one checkpoint to the next; 0 for none by the clock.
        gate: what holds the stream back.
        parts: of the directory.
        components: what else there is to keep, by name.
        on_durable: told of each capture that is on disk.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        path: Path,
        interval: float,
        gate: Gate,
        parts: Parts,
        components: Mapping[str, Component],
        *,
        on_durable: Callable[[Capture], None] = lambda captured: None,
        clock: Callable[[], float] = time.time,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.restored = Restored()
        self._folder = CheckpointFolder(path)
        self._interval = interval
        self._gate = gate
        self._parts = parts
        self._components = components
        self._on_durable = on_durable
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._shadow: Shadow | None = None
        self._checkpointer: Checkpointer | None = None

    def start(self) -> None:
        """Lock the folder, restore what is in it, and begin to keep time.

        Raises:
            FolderRefused: the path cannot be used.
            CheckpointMismatch: the checkpoint there does not agree with this process's settings.
        """
        self._folder.open()
        try:
            self.restored = restore(self._folder, self._parts, self._take_over)
            self._shadow = Shadow(self._parts)
        except BaseException:
            self._folder.close()
            raise
        writer = CheckpointWriter(
            self._folder,
            self._gate,
            self._shadow,
            {name: component.freeze for name, component in self._components.items()},
            self.restored.history,
            clock=self._clock,
            segment_bytes=self._segment_bytes,
        )
        self._checkpointer = Checkpointer(writer, self._interval, self._on_durable)
        self._checkpointer.start()

    def stop(self, seconds: float) -> None:
        """Write a last checkpoint, if that takes no longer than `seconds`, and let go of the folder."""
        if self._checkpointer is not None:
            self._checkpointer.stop(seconds)
            self._checkpointer = None
        if self._shadow is not None:
            self._shadow.close()
        self._folder.close()

    def ask(self) -> Future[Report]:
        """Have a checkpoint written; the result comes when it is on disk, or is a `CheckpointError`.

        Raises:
            CheckpointAbandoned: it is too early or too late for that.
        """
        if self._checkpointer is None:
            raise CheckpointAbandoned("no checkpoint is written before the start and after the end")
        return self._checkpointer.ask()

    def status(self) -> CheckpointStatus:
        """What there is to know about the checkpoints."""
        checkpointer, restored = self._checkpointer, self.restored
        counts = Counts() if checkpointer is None else checkpointer.counts()
        last = counts.last
        created = restored.manifest.created if restored.manifest else None
        return CheckpointStatus(
            last=last,
            newest=last.created if last else created,
            successes=counts.successes,
            failures=counts.failures,
            failure=counts.failure,
            damaged=restored.damaged,
            restored_from=created,
            restore_seconds=restored.seconds,
        )

    def _take_over(self, documents: Mapping[str, Any]) -> None:
        for name, component in self._components.items():
            if name not in documents:
                continue
            try:
                component.restore(documents[name])
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointMismatch(
                    f"{self._folder.path}: what the checkpoint says of {name!r} has another form than this "
                    f"version's ({error!r}): move it away, and the state is built from the log"
                ) from error
