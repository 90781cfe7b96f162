"""What is in a folder of checkpoints, for people to look at; changes nothing, and needs no lock.

Reads the files with their checksums and no code of the state, so that it can tell of a checkpoint that this
version cannot restore.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from processor.durability.errors import CheckpointDamaged, CheckpointMismatch, FolderRefused
from processor.durability.files import check_file
from processor.durability.folder import CheckpointFolder
from processor.durability.manifest import MANIFEST, File, Manifest, read_document, read_manifest


@dataclass(slots=True)
class Inspected:
    """One checkpoint as it was found.

    Attributes:
        manifest: None if it cannot be read.
        problems: what is wrong, file by file; empty if it is sound.
        documents: what it holds beside the directory, as far as it is sound.
    """

    path: Path
    manifest: Manifest | None = None
    problems: list[str] = field(default_factory=list)
    documents: dict[str, Any] = field(default_factory=dict)


def inspect(path: Path) -> list[Inspected]:
    """Look at every checkpoint in a folder, the current one first, or at the one that `path` itself is.

    Raises:
        FolderRefused: the path is a file, or cannot be read.
    """
    if (path / MANIFEST).is_file():
        return [_look(path)]
    if path.exists() and not path.is_dir():
        raise FolderRefused(f"{path} is a file, and checkpoints are a folder")
    folder = CheckpointFolder(path)
    try:
        return [_look(folder.checkpoint(number)) for number in folder.numbers()]
    except OSError as error:
        raise FolderRefused(f"cannot read {path}: {error.strerror}") from None


def _look(path: Path) -> Inspected:
    found = Inspected(path)
    try:
        found.manifest = read_manifest(path)
    except (CheckpointDamaged, CheckpointMismatch) as error:
        found.problems.append(str(error))
        return found
    for name, file in found.manifest.documents.items():
        try:
            found.documents[name] = orjson.loads(read_document(path, file))
        except CheckpointDamaged as error:
            found.problems.append(str(error))
    for array in found.manifest.arrays.values():
        found.problems += [
            problem for segment in array.segments if (problem := _problem_of(path, segment.file))
        ]
    return found


def _problem_of(path: Path, file: File) -> str | None:
    try:
        check_file(path, file)
    except CheckpointDamaged as error:
        return str(error)
    return None
