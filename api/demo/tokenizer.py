"""A tokenizer small enough to read: the same text gives the same tokens on every machine and Python version.

The demo needs real text as token ids, not a language model's vocabulary. Text is cut into pieces the size
that a byte-pair tokenizer cuts it into, and a piece's id is a checksum of its bytes. It works on UTF-8 bytes
and ASCII classes alone, since what counts as a letter in Unicode changes from one Python release to the next.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

VOCABULARY: Final = 128_000
"""Ids lie in `[0, VOCABULARY)`, about the size of a current model's vocabulary."""

_PIECE: Final = re.compile(rb" ?[A-Za-z]{1,7}| ?[0-9]{1,3}|\s+|[\x80-\xff]{1,4}|.", re.DOTALL)


def tokenize(text: str) -> NDArray[np.uint32]:
    """The token ids of `text`, uint32; no token spans the seam when texts are tokenized apart and joined."""
    return np.array([_id(piece) for piece in _PIECE.findall(text.encode())], np.uint32)


@lru_cache(maxsize=65_536)
def _id(piece: bytes) -> int:
    return zlib.crc32(piece) % VOCABULARY
