"""Files of a checkpoint: written with their checksum and fsynced, read back with it and compared.

Arrays are `.npy` files, so that NumPy alone can open them. Their rows begin at a page of their own, so that
they can be mapped. Both directions work in blocks, between which other threads get their turn.
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

from processor.durability.errors import CheckpointChanged, CheckpointDamaged
from processor.durability.manifest import File, checksum

BLOCK = 1 << 20
"""Bytes hashed, and written or read, in one go: a few tenths of a millisecond."""
HEADER = 4_096
"""Bytes before the first row: a page, and less than NumPy's limit for a header that it does not trust."""


def npy_header(array: NDArray[Any], length: int) -> bytes:
    """What a `.npy` file of the array begins with, `length` bytes of it, or more where it must be more."""
    header = io.BytesIO()
    fields: Any = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_2_0(header, fields)
    least = header.getvalue()
    text = least[12:-1].ljust(length - 13) + b"\n"
    return least[:8] + len(text).to_bytes(4, "little") + text


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
    header = npy_header(array, HEADER)
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


def check_file(folder: Path, file: File) -> None:
    """Compare a file with what its manifest says of it.

    Raises:
        CheckpointDamaged: it is not what was written.
    """
    digest, block = xxhash.xxh3_128(), memoryview(bytearray(BLOCK))
    try:
        if not (folder / file.name).is_file():
            raise CheckpointDamaged(f"there is no file {file.name}")
        with (folder / file.name).open("rb", buffering=0) as source:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            size = os.fstat(source.fileno()).st_size
            if size != file.size:
                raise CheckpointDamaged(f"{file.name} has {size:,} bytes in place of {file.size:,}")
            while got := source.readinto(block):
                digest.update(block[:got])
    except OSError as error:
        raise CheckpointDamaged(f"{file.name}: {error.strerror}") from None
    if digest.hexdigest() != file.checksum:
        raise CheckpointDamaged(f"{file.name} is not what was written")


def offset_of_rows(file: File, array: NDArray[Any]) -> int:
    """Where the rows of an array begin in its file.

    Raises:
        CheckpointDamaged: the file is not as long as so many rows make it.
    """
    offset = file.size - array.nbytes
    if offset != len(npy_header(array, max(offset, 0))):
        raise CheckpointDamaged(f"{file.name} does not hold as many rows as the manifest says")
    return offset


def read_rows(path: Path, offset: int, array: NDArray[Any]) -> None:
    """Fill a contiguous array with the rows of a file that was compared.

    Raises:
        CheckpointChanged: it cannot be read any more. The array may be filled in part.
    """
    raw = array.reshape(-1).view(np.uint8).data
    try:
        with path.open("rb", buffering=0) as source:
            source.seek(offset)
            at = 0
            while at < len(raw):
                got = source.readinto(raw[at : at + BLOCK])
                if not got:
                    raise CheckpointChanged(f"{path} was cut short while it was read: start again")
                at += got
    except OSError as error:
        raise CheckpointChanged(
            f"{path} was sound and cannot be read any more ({error.strerror}): start again"
        ) from None


def _write(file: io.RawIOBase, data: Any) -> None:
    view = memoryview(data)
    while view:
        written = file.write(view)
        view = view[written or 0 :]
