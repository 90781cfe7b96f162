"""Files of a checkpoint: written with their checksum and fsynced, read back with it and compared.

Arrays are `.npy` files, so that NumPy alone can open them. Both directions work in blocks, between which
other threads get their turn; reading goes straight into memory that waits for it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from processor.durability.errors import CheckpointDamaged
from processor.durability.manifest import File, checksum

BLOCK = 1 << 20
"""Bytes hashed, and written or read, in one go: a few tenths of a millisecond."""


def npy_header(array: NDArray[Any]) -> bytes:
    """What a `.npy` file of the array begins with."""
    header = io.BytesIO()
    fields: Any = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_2_0(header, fields)
    return header.getvalue()


def write_array(path: Path, array: NDArray[Any], *, settled: bool, pause: Callable[[], None]) -> File:
    """Write a contiguous array as a `.npy` file; on return it is on disk.

    Args:
        path: of a file that does not exist.
        array: the rows.
        settled: nobody writes into the array meanwhile. Otherwise each block is copied first, so that file
            and checksum agree whatever happens.
        pause: called between blocks; may raise to give up.
    """
    raw = array.reshape(-1).view(np.uint8)
    copied = np.empty(0 if settled else BLOCK, np.uint8)
    digest = xxhash.xxh3_128()
    header = npy_header(array)
    digest.update(header)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        _write(file, header)
        for start in range(0, len(raw), BLOCK):
            pause()
            block = raw[start : start + BLOCK]
            if not settled:
                copied[: len(block)] = block
                block = copied[: len(block)]
            digest.update(block.data)
            _write(file, block.data)
        os.fsync(file.fileno())
    return File(path.name, len(header) + len(raw), digest.hexdigest())


def write_document(path: Path, data: bytes) -> File:
    """Write a file of plain bytes; on return it is on disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        _write(file, data)
        os.fsync(file.fileno())
    return File(path.name, len(data), checksum(data))


def read_array(folder: Path, file: File, array: NDArray[Any]) -> None:
    """Fill a contiguous array with the rows of its file.

    Raises:
        CheckpointDamaged: the file is not what was written. The array may be filled in part.
    """
    raw = array.reshape(-1).view(np.uint8).data
    header = npy_header(array)
    if file.size != len(header) + len(raw):
        raise CheckpointDamaged(f"{file.name} does not hold as many rows as the manifest says")
    digest = xxhash.xxh3_128()
    try:
        with (folder / file.name).open("rb", buffering=0) as source:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            if source.read(len(header)) != header:
                raise CheckpointDamaged(f"{file.name} is not what was written")
            digest.update(header)
            at = 0
            while at < len(raw):
                got = source.readinto(raw[at : at + BLOCK])
                if not got:
                    raise CheckpointDamaged(f"{file.name} is cut short")
                digest.update(raw[at : at + got])
                at += got
            if source.read(1):
                raise CheckpointDamaged(f"{file.name} is longer than what was written")
    except OSError as error:
        raise CheckpointDamaged(f"{file.name}: {error.strerror}") from None
    if digest.hexdigest() != file.checksum:
        raise CheckpointDamaged(f"{file.name} is not what was written")


def _write(file: io.RawIOBase, data: Any) -> None:
    view = memoryview(data)
    while view:
        written = file.write(view)
        view = view[written or 0 :]
