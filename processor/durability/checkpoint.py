"""Writing one checkpoint, step by step, and what it takes from those before.

A column is cut into segments, a file each. A segment that did not change since the current checkpoint, and
is the same there as in the one before, is a hard link to the latter's file: the new checkpoint and the
current one share nothing. All else is written.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from processor.durability import manifest as manifests
from processor.durability.errors import CheckpointDamaged
from processor.durability.files import check_file, write_array, write_document
from processor.durability.folder import CheckpointFolder
from processor.durability.manifest import FORMAT, MANIFEST, NAMES, Array, File, Manifest, Segment, Settings
from processor.durability.quiesce import Capture, Freeze, Gate, capture
from processor.state.layout import L1_COUNT, L2_COUNT, LIVE_KEYS
from processor.state.snapshot import COLUMNS, TOKEN_ROWS, Shadow, Snapshot

SEGMENT_BYTES: Final = 32 << 20
"""A segment has at most so many bytes, and a power of two of rows."""
COMPARE_EVERY: Final = 8
"""A file that is linked from checkpoint to checkpoint is compared with its checksum once in so many."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """A checkpoint that is on disk; times in seconds.

    Attributes:
        bytes: what it holds.
        written: how much of that is not linked from an earlier one.
        created: the instant that it is of, since the epoch.
        duration: from the first copy to the rename.
        pause: for how long no batch was let through.
    """

    number: int
    path: str
    bytes: int
    written: int
    created: float
    duration: float
    pause: float


@dataclass(slots=True)
class History:
    """The two newest checkpoints, which the next one builds on; `damaged` ones go once it is there."""

    current: Manifest | None = None
    before: Manifest | None = None
    damaged: list[int] = field(default_factory=list)


class CheckpointWriter:
    """Writes checkpoints of one state into one open folder; one at a time.

    Args:
        folder: open.
        gate: what holds the stream back.
        shadow: of the directory.
        components: what else there is, by name.
        history: what the folder holds already, and the state goes on from.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        gate: Gate,
        shadow: Shadow,
        components: Mapping[str, Freeze],
        history: History,
        *,
        clock: Callable[[], float] = time.time,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._folder = folder
        self._gate = gate
        self._shadow = shadow
        self._components = components
        self._history = history
        self._clock = clock
        self._segment_bytes = segment_bytes

    def write(self, pause: Callable[[], None] = lambda: None) -> tuple[Report, Capture]:
        """Write a checkpoint; when this returns it is on disk and the current one.

        Args:
            pause: called every few megabytes; may raise to give up.

        Raises:
            OSError: it could not be written. Those before stand.
        """
        began = time.perf_counter()
        number = self._folder.next_number()
        # 1. Take the state at one instant.
        captured = capture(self._gate, self._shadow, self._components, self._clock)
        try:
            # 2. Write its files beside the checkpoints there are, each to the disk.
            folder = self._folder.begin(number)
            arrays, written = self._write_arrays(folder, captured.snapshot, pause)
            documents = _write_documents(folder, captured)
            # 3. Write the manifest, which makes them a checkpoint, ...
            made = _manifest(number, captured, arrays, documents)
            write_document(folder / MANIFEST, manifests.encode(made))
            # 4. ... and let it be the current one.
            self._folder.publish(number)
        except BaseException:
            self._folder.abandon(number)
            raise
        finally:
            self._shadow.release()
        # 5. What changes from here on has changed since; the oldest may go.
        self._shadow.settle()
        for damaged in self._history.damaged:
            self._folder.remove(damaged)
        self._history = History(made, self._history.current)
        self._folder.prune()
        report = Report(
            number=number,
            path=str(self._folder.checkpoint(number)),
            bytes=sum(file.size for file in made.files()),
            written=written + sum(file.size for file in documents.values()),
            created=captured.taken,
            duration=time.perf_counter() - began,
            pause=captured.pause,
        )
        return report, captured

    def _write_arrays(
        self, folder: Path, snapshot: Snapshot, pause: Callable[[], None]
    ) -> tuple[dict[str, Array], int]:
        arrays: dict[str, Array] = {}
        written = 0
        # Tokens first: rows that are freed wait until they are written.
        for name in (TOKEN_ROWS.name, *(name for name in COLUMNS if name != TOKEN_ROWS.name)):
            column, segments = snapshot.columns[name], []
            for index, (begin, end) in enumerate(_segments(name, column, self._segment_bytes)):
                file = self._link(folder, snapshot, name, index, begin, end)
                if file is None:
                    path = folder / f"{name}.{index:04}.npy"
                    file = write_array(path, column[begin:end], settled=name != TOKEN_ROWS.name, pause=pause)
                    written += file.size
                segments.append(Segment(end - begin, file))
            arrays[name] = Array(describe(column.dtype), list(column.shape), segments)
            if name == TOKEN_ROWS.name:
                self._shadow.release()
        for name, small in snapshot.small.items():
            file = write_array(folder / f"{name}.npy", small, settled=True, pause=pause)
            written += file.size
            arrays[name] = Array(describe(small.dtype), list(small.shape), [Segment(len(small), file)])
        return arrays, written

    def _link(
        self, folder: Path, snapshot: Snapshot, name: str, index: int, begin: int, end: int
    ) -> File | None:
        """Link a segment from the checkpoint before the current one, if it is the same still."""
        current, before = self._history.current, self._history.before
        if current is None or before is None or snapshot.has_changed(name, begin, end):
            return None
        here, there = (_segment_of(made, name, index) for made in (current, before))
        if here is None or here != there or here.rows != end - begin:
            return None
        kept = self._folder.checkpoint(before.number)
        try:
            # Every other checkpoint goes on with the same file, so each is compared once in so many of those.
            if (before.number // 2 + index) % COMPARE_EVERY == 0:
                check_file(kept, here.file)
            os.link(kept / here.file.name, folder / here.file.name)
        except CheckpointDamaged as error:
            logger.warning("%s is damaged, and written anew: %s", kept, error)
            return None
        except OSError:
            # Not every file system has hard links, and somebody may have removed the file.
            return None
        return here.file


def _segment_of(made: Manifest, name: str, index: int) -> Segment | None:
    segments = made.arrays[name].segments
    return segments[index] if index < len(segments) else None


def _segments(name: str, column: NDArray[Any], most_bytes: int) -> Iterator[tuple[int, int]]:
    row_bytes = max(column[:1].nbytes, 1)
    rows = 1 << max((most_bytes // row_bytes).bit_length() - 1, COLUMNS[name].log2)
    for begin in range(0, len(column), rows):
        yield begin, min(begin + rows, len(column))


def _write_documents(folder: Path, captured: Capture) -> dict[str, File]:
    encoded = {name: orjson.dumps(document) for name, document in captured.documents.items()}
    encoded[NAMES] = msgspec.json.encode(captured.snapshot.names)
    return {name: write_document(folder / f"{name}.json", data) for name, data in encoded.items()}


def _manifest(
    number: int, captured: Capture, arrays: dict[str, Array], documents: dict[str, File]
) -> Manifest:
    snapshot = captured.snapshot
    meta, names = snapshot.small["meta"], snapshot.names
    return Manifest(
        format=FORMAT,
        number=number,
        created=captured.taken,
        version=_version(),
        settings=Settings(snapshot.columns[TOKEN_ROWS.name].shape[1], names.blend, names.fingerprint_bits),
        keys=int(meta[LIVE_KEYS]),
        placements=int(meta[L1_COUNT] + meta[L2_COUNT]),
        arrays=arrays,
        documents=documents,
    )


def describe(dtype: np.dtype[Any]) -> Any:
    """A dtype as JSON holds it."""
    description = np.lib.format.dtype_to_descr(dtype)
    return description if isinstance(description, str) else [list(item) for item in description]


def _version() -> str:
    try:
        return version("blendstream")
    except PackageNotFoundError:
        return "unknown"
