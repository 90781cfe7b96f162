"""Bringing back the newest checkpoint that is sound.

Every byte is verified before the first row is put in its place, which mostly is to map the file there. What
is damaged is passed over for the checkpoint before, and if that is damaged too the state is built from the
log. A checkpoint that is sound and does not agree with the settings ends the start instead: what to do about
it is for the operator to say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from processor.durability.checkpoint import History, describe
from processor.durability.errors import CheckpointDamaged, CheckpointMismatch
from processor.durability.files import check_file, offset_of_rows, read_rows
from processor.durability.folder import CheckpointFolder
from processor.durability.manifest import MANIFEST, NAMES, File, Manifest, read_document, read_manifest
from processor.state.parts import Parts
from processor.state.restore import NoRoom, adopt, columns_to_fill
from processor.state.snapshot import COLUMNS, SMALL, Names

logger = logging.getLogger(__name__)

READERS = 2
MAPPED_FROM_BYTES = 64 << 10
"""A shorter segment is read: it costs less than a mapping."""


class Stretch(NamedTuple):
    """A file, the rows that it holds from `offset` on, and whether they are better mapped than read."""

    file: File
    rows: NDArray[Any]
    offset: int
    to_be_mapped: bool


@dataclass(slots=True)
class Restored:
    """How a start went.

    Attributes:
        manifest: of the checkpoint that was restored, None after a cold start.
        damaged: how many newer ones were passed over.
        seconds: what it took.
    """

    manifest: Manifest | None = None
    damaged: int = 0
    seconds: float = 0.0
    history: History = field(default_factory=History)


def restore(
    folder: CheckpointFolder, parts: Parts, take_over: Callable[[Mapping[str, Any]], None]
) -> Restored:
    """Fill an empty directory from the newest sound checkpoint.

    Args:
        folder: where they are.
        parts: of the directory; no batch may be applied to it meanwhile.
        take_over: gives the components what was captured of them, by name.

    Raises:
        CheckpointMismatch: the checkpoint was made with settings other than this process's, or by another
            version.
        CheckpointChanged: a file was sound and could not be read any more.
    """
    began = time.perf_counter()
    result = Restored()
    for number in folder.numbers():
        path = folder.checkpoint(number)
        try:
            manifest = read_manifest(path)
            _check_settings(manifest, parts, path)
            with parts.lock.write:
                _load(path, manifest, parts, take_over)
        except CheckpointDamaged as error:
            logger.error("checkpoint %s is damaged and passed over: %s", path, error)
            result.history.damaged.append(number)
            result.damaged += 1
            continue
        result.manifest = result.history.current = manifest
        result.history.before = _older(folder, number)
        result.seconds = time.perf_counter() - began
        logger.info(
            "restored %s: %d keys as of %s, in %.2f s",
            path, manifest.keys, _moment(manifest.created), result.seconds,
        )  # fmt: skip
        return result
    why = "no checkpoint there is sound" if result.damaged else "there is no checkpoint yet"
    logger.log(
        logging.ERROR if result.damaged else logging.INFO,
        "cold start: %s in %s; the state is built from the log",
        why, folder.path,
    )  # fmt: skip
    return result


def _check_settings(manifest: Manifest, parts: Parts, path: Path) -> None:
    chunk_size = parts.state.tables.tokens.shape[1]
    if manifest.settings.chunk_size != chunk_size:
        raise CheckpointMismatch(
            f"{path} was made with --chunk-size {manifest.settings.chunk_size}, and this process has "
            f"{chunk_size}: start with the same, or with another --checkpoint-path to build the state anew"
        )


def _load(
    path: Path, manifest: Manifest, parts: Parts, take_over: Callable[[Mapping[str, Any]], None]
) -> None:
    if not {*COLUMNS, *SMALL} <= manifest.arrays.keys() or NAMES not in manifest.documents:
        raise CheckpointDamaged(f"{MANIFEST} does not name all files")
    try:
        columns = columns_to_fill(parts, {name: manifest.arrays[name].shape[0] for name in COLUMNS})
    except NoRoom as error:
        raise CheckpointMismatch(f"{path} needs a larger --max-chunks: {error}") from None
    small = {name: _empty(manifest, name, getattr(parts.state.tables, name)) for name in SMALL}
    stretches = [
        Stretch(file, rows, offset_of_rows(file, rows), name in columns and rows.nbytes >= MAPPED_FROM_BYTES)
        for name, array in {**columns, **small}.items()
        for file, rows in _segments(path, manifest, name, array)
    ]
    _verify(path, stretches)
    documents = {name: read_document(path, file) for name, file in manifest.documents.items()}
    try:
        names = msgspec.json.decode(documents.pop(NAMES), type=Names)
        plain = {name: orjson.loads(document) for name, document in documents.items()}
    except (msgspec.DecodeError, orjson.JSONDecodeError) as error:
        raise CheckpointMismatch(
            f"{path}: a document has another form than this version's: {error}"
        ) from None
    # From here on nothing may fail that another checkpoint would be tried after.
    for file, rows, offset, to_be_mapped in stretches:
        if not (to_be_mapped and parts.mapped.map(rows, path / file.name, offset)):
            read_rows(path / file.name, offset, rows)
    take_over(plain)
    adopt(parts, small, names)


def _empty(manifest: Manifest, name: str, table: NDArray[Any]) -> NDArray[Any]:
    shape = manifest.arrays[name].shape
    if name == "meta" and shape != [len(table)]:
        raise CheckpointMismatch(f"a checkpoint with {shape} counters is not of this version")
    if len(shape) != table.ndim or any(rows > most for rows, most in zip(shape, table.shape, strict=True)):
        raise CheckpointDamaged(f"{MANIFEST} gives {name} the shape {shape}")
    return np.zeros(shape, table.dtype)


def _segments(
    path: Path, manifest: Manifest, name: str, array: NDArray[Any]
) -> Iterator[tuple[File, NDArray[Any]]]:
    """Each segment of an array, and the rows that it is to fill."""
    kept = manifest.arrays[name]
    if kept.dtype != describe(array.dtype) or kept.shape != list(array.shape):
        raise CheckpointMismatch(f"{path}: rows of {name} have another form than this version's")
    begin = 0
    for segment in kept.segments:
        yield segment.file, array[begin : begin + segment.rows]
        begin += segment.rows
    if begin != len(array):
        raise CheckpointDamaged(f"{MANIFEST} names {begin} rows of {name} in place of {len(array)}")


def _verify(path: Path, stretches: list[Stretch]) -> None:
    """Compare all files on a few threads."""
    with ThreadPoolExecutor(READERS, "restore") as pool:
        for _ in pool.map(lambda stretch: check_file(path, stretch.file), stretches):
            pass


def _older(folder: CheckpointFolder, number: int) -> Manifest | None:
    """The manifest of the checkpoint before, if it can be built on."""
    older = [other for other in folder.numbers() if other < number]
    try:
        return read_manifest(folder.checkpoint(older[0])) if older else None
    except (CheckpointDamaged, CheckpointMismatch):
        return None


def _moment(created: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(created))
