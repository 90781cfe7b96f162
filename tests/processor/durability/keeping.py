"""A directory behind a gate, with a checkpoint writer, and what to compare of two directories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from processor.durability.checkpoint import CheckpointWriter, Report
from processor.durability.folder import CheckpointFolder
from processor.durability.restoration import Restored, restore
from processor.ingest.broadcaster import Broadcaster
from processor.ingest.gate import EventGate
from processor.state.directory import KeyDirectory
from processor.state.snapshot import Shadow
from producer.events import Namespace
from tests.processor.state.fleet import Fleet, directory

SEGMENT_BYTES = 1 << 10
"""Small, so that a small state has several segments; a piece is the least."""
NAMESPACES = [Namespace("model", salt, size) for salt in ("", "salt") for size in (1, 2)]


@dataclass
class Kept:
    """One process's worth: restored from the folder if there is something in it."""

    path: Path
    held: KeyDirectory = field(default_factory=directory)
    restored: Restored = field(default_factory=Restored)
    documents: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate = EventGate(Broadcaster([self.held]), clock=lambda: 0.0)
        self.folder = CheckpointFolder(self.path)
        self.folder.open()
        try:
            self.restored = restore(self.folder, self.held.parts, self._take_over)
        except BaseException:
            self.folder.close()
            raise
        self.shadow = Shadow(self.held.parts)
        self.writer = CheckpointWriter(
            self.folder,
            self.gate,
            self.shadow,
            {"gate": lambda: self._constant(self.gate.capture())},
            self.restored.history,
            segment_bytes=SEGMENT_BYTES,
        )

    def write(self, pause: Callable[[], None] = lambda: None) -> Report:
        return self.writer.write(pause)[0]

    def close(self) -> None:
        self.shadow.close()
        self.folder.close()

    def _take_over(self, documents: Any) -> None:
        self.documents = dict(documents)
        self.gate.restore(documents["gate"])

    @staticmethod
    def _constant(value: Any) -> Callable[[], Any]:
        return lambda: value


def answers(held: KeyDirectory) -> dict[str, Any]:
    """All that the directory says, to whatever question the tests' fleets give rise to."""
    total, keys = held.list_keys(None, "", "", 0, 1 << 20)
    texts = np.random.default_rng(0).integers(0, 60, (20, 64)).astype(np.uint32)
    return {
        "total": total,
        "keys": keys and [(info.key, info.placements, info.access_count) for info in keys],
        "tokens": [info.token_ids.tolist() for info in held.lookup([info.key for info in keys])],
        "matches": [
            held.match(text, namespace) for text in [*texts, *tokens(held)] for namespace in NAMESPACES
        ],
        "usage": held.usage(),
        "stats": {**_plain(held.stats())},
        "names": held.interned(),
    }


def tokens(held: KeyDirectory) -> list[np.ndarray[Any, np.dtype[np.uint32]]]:
    """Every text that some key has."""
    _, keys = held.list_keys(None, "", "", 0, 1 << 20)
    texts = {tuple(info.token_ids.tolist()) for info in held.lookup([info.key for info in keys])}
    return [np.array(text, np.uint32) for text in sorted(texts) if text]


def _plain(stats: Any) -> dict[str, Any]:
    # The filter is made anew, in whatever size suits.
    return {
        name: (value.num_contents, value.num_chunks, value.num_claims, value.num_namespaces)
        if name == "blend"
        else value
        for name, value in ((name, getattr(stats, name)) for name in stats.__slots__)
    }


def grown(path: Path, *, steps: int = 400, seed: int = 1, chunks: int = 2_000) -> tuple[Kept, Fleet]:
    """A directory with something in it, nothing of which is on disk."""
    kept = Kept(path)
    fleet = Fleet(kept.held, seed, chunks)
    for _ in range(steps):
        fleet.step()
    return kept, fleet
