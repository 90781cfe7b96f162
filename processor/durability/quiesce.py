"""Everything at one instant, with the stream held back for as short as can be.

Most of what changed is copied before, while batches go on being applied; what changes during that is copied
again. Then the gate is closed, the few pieces that changed last are copied, and each component gives what
must agree with them. The gate opens, and what can be made plain afterwards is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from processor.state.snapshot import Shadow, Snapshot

Freeze = Callable[[], Callable[[], Any]]
"""Called while the gate is closed; what it returns is called after, and gives what JSON can hold."""

FEW_BYTES = 16 << 20
"""So much is copied under the closed gate without trying to have less: some milliseconds."""
MOST_ROUNDS = 3


class Gate(Protocol):
    """What can hold the stream back."""

    def quiesced(self) -> AbstractContextManager[None]:
        """Hold every batch back for as long as the context lasts."""


@dataclass(frozen=True, slots=True)
class Capture:
    """What there was at one instant.

    Attributes:
        documents: every component by its name.
        taken: the instant, in seconds since the epoch.
        pause: for how long the gate was closed, in seconds.
    """

    snapshot: Snapshot
    documents: dict[str, Any]
    taken: float
    pause: float


def capture(
    gate: Gate, shadow: Shadow, components: Mapping[str, Freeze], clock: Callable[[], float] = time.time
) -> Capture:
    """Take the state at one instant. `shadow.release` is due when its tokens have been read."""
    before = None
    for _ in range(MOST_ROUNDS):
        there = shadow.collect()
        shadow.copy()
        if there <= FEW_BYTES or (before is not None and there > before // 2):
            break
        before = there
    try:
        with gate.quiesced():
            began = time.perf_counter()
            snapshot = shadow.freeze()
            pending = {name: freeze() for name, freeze in components.items()}
            taken, pause = clock(), time.perf_counter() - began
        return Capture(snapshot, {name: finish() for name, finish in pending.items()}, taken, pause)
    except BaseException:
        shadow.release()
        raise
