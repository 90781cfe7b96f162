"""What the demo and its cache servers say to each other: one request at a time, each answered by a `Report`.

Only the numbers of requests travel; a cache server builds the requests themselves from the same `Recipe`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from api.demo.oracle import Held
from api.demo.trace import read_trace
from api.demo.workload import Workload, assembled_prompts


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build the workload; the same recipe gives the same workload in every process."""

    requests: int
    trace: Path | None = None

    def workload(self) -> Workload:
        """Build it."""
        if self.trace is not None:
            return read_trace(self.trace, self.requests)
        return assembled_prompts(self.requests)


@dataclass(frozen=True, slots=True)
class Start:
    """Become a cache server; `folder` keeps its incarnation over restarts, all servers mount `pool`."""

    name: str
    recipe: Recipe
    bootstrap: str
    topic: str
    folder: Path
    pool: Path


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve requests by number, each no sooner than its time.

    Attributes:
        epoch: the workload's start on the monotonic clock.
        speed: seconds of the workload that pass in one second.
        withhold: keep back the next batch that stores into L1.
    """

    numbers: tuple[int, ...]
    epoch: float = 0.0
    speed: float = float("inf")
    withhold: bool = False


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send the batch that was kept back."""


@dataclass(frozen=True, slots=True)
class Trim:
    """Evict from the pool, least recently used first, until it holds `keep` chunks."""

    keep: int


@dataclass(frozen=True, slots=True)
class Report:
    """A cache server's state once all it has emitted is acknowledged by the broker.

    Attributes:
        l1: every chunk in its memory.
        withheld: the chunks of the batch being kept back.
        entries: entries emitted by this incarnation, those of the batch kept back among them.
    """

    incarnation: int
    last_seq: int
    entries: int
    l1: frozenset[Held]
    withheld: frozenset[Held]


Message = Start | Serve | Deliver | Trim
