"""The manifest: what a checkpoint consists of and what it was made with.

Every file is named with its length and its checksum, and the manifest carries one of its own text, so nothing
that a disk did to a checkpoint goes unnoticed. It is the last file written.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from processor.durability.errors import CheckpointDamaged, CheckpointMismatch

FORMAT: Final = 2
"""Grows with every change after which older code would misread a checkpoint."""
READABLE: Final = (1, FORMAT)
"""In format 1 rows begin right behind the header of their file, so that they cannot be mapped."""
MANIFEST: Final = "manifest.json"
MOST_SECONDS: Final = 1e11
_FILE_NAME: Final = re.compile(r"[a-z][a-z0-9_.]*")
_NUMBERED: Final = re.compile(r"checkpoint-[0-9]+")
NAMES: Final = "names"
"""The document that holds what the directory has beside its arrays."""


class File(msgspec.Struct, frozen=True):
    """One file, by its name in the folder; `checksum` is XXH3 (128 bits) of all its bytes, in hex."""

    name: str
    size: int
    checksum: str


class Segment(msgspec.Struct, frozen=True):
    """Some rows of an array, in a file of their own."""

    rows: int
    file: File


class Array(msgspec.Struct, frozen=True):
    """An array in segments, one behind the other; `shape` is of the whole, `dtype` as NumPy describes it."""

    dtype: Any
    shape: list[int]
    segments: list[Segment]


class Settings(msgspec.Struct, frozen=True):
    """What the state was made with."""

    chunk_size: int
    blend: bool
    fingerprint_bits: int


class Manifest(msgspec.Struct, frozen=True):
    """A checkpoint. `created` is the instant it is of, in seconds since the epoch."""

    format: int
    number: int
    created: float
    version: str
    settings: Settings
    keys: int
    placements: int
    arrays: dict[str, Array]
    documents: dict[str, File]

    def files(self) -> list[File]:
        """All files but the manifest."""
        segments = [segment.file for array in self.arrays.values() for segment in array.segments]
        return [*segments, *self.documents.values()]


class _Envelope(msgspec.Struct):
    checksum: str
    manifest: msgspec.Raw


class _Head(msgspec.Struct):
    format: int
    version: str = "?"


def checksum(data: bytes) -> str:
    """The checksum of a file."""
    return xxhash.xxh3_128_hexdigest(data)


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint at `path`.

    Raises:
        CheckpointDamaged: it is missing, or not what was written.
        CheckpointMismatch: it is of another format.
    """
    try:
        text = (path / MANIFEST).read_bytes()
    except OSError as error:
        raise CheckpointDamaged(f"{MANIFEST}: {error.strerror}") from None
    found = decode(text)
    if path.name != f"checkpoint-{found.number}" and _NUMBERED.fullmatch(path.name):
        raise CheckpointDamaged(f"{MANIFEST} is of checkpoint {found.number}")
    return found


def read_document(folder: Path, file: File) -> bytes:
    """The bytes of a file.

    Raises:
        CheckpointDamaged: they are not what was written.
    """
    try:
        data = (folder / file.name).read_bytes()
    except OSError as error:
        raise CheckpointDamaged(f"{file.name}: {error.strerror}") from None
    if checksum(data) != file.checksum:
        raise CheckpointDamaged(f"{file.name} is not what was written")
    return data


def encode(manifest: Manifest) -> bytes:
    """The text of the manifest's file."""
    return _envelop(msgspec.json.encode(manifest))


def _envelop(body: bytes) -> bytes:
    return b'{"checksum":"' + checksum(body).encode() + b'",\n"manifest":' + body + b"}\n"


def decode(text: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        CheckpointDamaged: it is not what was written.
        CheckpointMismatch: it is of another format.
    """
    try:
        body = bytes(msgspec.json.decode(text, type=_Envelope).manifest)
        if text != _envelop(body):
            raise CheckpointDamaged(f"{MANIFEST} is not what was written")
        head = msgspec.json.decode(body, type=_Head)
        if head.format not in READABLE:
            raise CheckpointMismatch(
                f"the checkpoint has format {head.format}, written by version {head.version}; this version "
                f"reads formats up to {FORMAT}: move it away, and the state is built from the log"
            )
        found = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointDamaged(f"{MANIFEST} is not what was written: {error}") from None
    _check(found)
    return found


def _check(manifest: Manifest) -> None:
    """See that a manifest names files of its own folder, and arrays and a time that there can be."""
    if not 0 <= manifest.created < MOST_SECONDS:
        raise CheckpointDamaged(f"{MANIFEST} is of {manifest.created} s since the epoch")
    for file in manifest.files():
        if not _FILE_NAME.fullmatch(file.name):
            raise CheckpointDamaged(f"{MANIFEST} names a file {file.name!r}")
    for name, array in manifest.arrays.items():
        rows = [segment.rows for segment in array.segments]
        if not array.shape or min([*array.shape, *rows]) < 0:
            raise CheckpointDamaged(f"{MANIFEST} gives {name} the shape {array.shape}, in segments of {rows}")
