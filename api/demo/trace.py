"""Requests from a block trace, as the Mooncake project publishes them: one JSON object a line, gzipped or
not.

A trace holds no text. Each id in `hash_ids` stands for a block of 512 tokens, the last one perhaps cut short
by `input_length`; equal ids are equal content. Here a block's tokens are the output of SHAKE-128 on its id:
equal ids give equal tokens on every machine, unequal ids unequal ones, and a block is two chunks of the
cache.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from api.demo.tokenizer import VOCABULARY
from api.demo.workload import LLAMA, Request, Tokens, Workload, assemble, plan_fleet

BLOCK_TOKENS: Final = 512
MEMBERS: Final = ("timestamp", "input_length", "hash_ids")
"""What a request of a trace must have."""

_FLEET: Final = tuple((f"server-{letter}", LLAMA) for letter in "abcd")


class TraceError(ValueError):
    """The file is no block trace; the message names the file, the line and what is wrong."""


def block_tokens(block_id: int) -> Tokens:
    """The 512 tokens of a block, uint32."""
    stream = hashlib.shake_128(f"blendstream block {block_id}".encode()).digest(BLOCK_TOKENS * 4)
    return np.frombuffer(stream, "<u4").astype(np.uint32) % np.uint32(VOCABULARY)


def read_trace(path: Path, count: int) -> Workload:
    """The first `count` requests of a trace; at most as many as it has."""
    blocks: dict[int, Tokens] = {}
    requests: list[Request] = []
    for number, (line, row) in zip(range(count), _rows(path), strict=False):
        if lacking := [name for name in MEMBERS if name not in row]:
            raise TraceError(f"{path}, line {line}: not a request of a block trace: it has no {lacking[0]!r}")
        try:
            at, length = float(row["timestamp"]) / 1000, int(row["input_length"])
            ids = [int(block_id) for block_id in row["hash_ids"]]
        except (TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {line}: not a request of a block trace: {error}") from None
        if not 0 < length <= len(ids) * BLOCK_TOKENS:
            raise TraceError(f"{path}, line {line}: input_length {length} does not fit {len(ids)} blocks")
        for block_id in ids:
            if block_id not in blocks:
                blocks[block_id] = block_tokens(block_id)
        tokens = np.concatenate([blocks[block_id] for block_id in ids])[:length]
        server, model = _FLEET[number % len(_FLEET)]
        requests.append(assemble(number, at, model, "", server, [("prompt", tokens)]))
    if not requests:
        raise TraceError(f"{path}: no requests in it")
    return plan_fleet(path.name, requests, _FLEET, recorded=True)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise TraceError(f"{path}, line {number}: not a JSON object")
                yield number, row
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TraceError(f"{path}: cannot be read as a trace: {error}") from None


def _open(path: Path) -> io.TextIOBase:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), "utf-8")
    return path.open(encoding="utf-8")
