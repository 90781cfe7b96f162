"""Compile every kernel once, and say how far it is: `python -m processor.warmup`.

Each step drives the real thing with a few entries, so that what is compiled, and cached on disk, is what a
server calls. Once that is done a start takes a second instead of a minute.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from processor.batch import Admission, EventBatch
from processor.ingest.decode import Decoder
from processor.ingest.pieces import PIECE
from processor.kernel import cache_name
from processor.state.directory import KeyDirectory
from processor.state.entry_kernels import derive, index_all, unindex_all
from processor.state.snapshot import Shadow
from producer.events import CacheEventBatch, CacheEventEntry, EventType, Namespace, ObjectKey, Tier
from producer.wire import encode_columns, encode_rows

logger = logging.getLogger(__name__)

# Numba's stubs do not know its settings.
_config: Any = numba.config

CHUNK_SIZE = 256
KEEP_UNUSED = 30 * 86_400
"""Seconds that the machine code of another version is kept after its last use; it is some 80 MB."""


class _Warmup:
    """The steps share a directory, since each compiles against what the one before left."""

    def __init__(self) -> None:
        self.decoder = Decoder(CHUNK_SIZE)
        self.directory = KeyDirectory(chunk_size=CHUNK_SIZE, max_chunks=1024)
        self.tokens = np.arange(2 * CHUNK_SIZE, dtype=np.uint32)
        self.keys = [ObjectKey(bytes([i]) * 32, "model", 1 << 24) for i in range(2)]
        self.seq = 0

    def batch(self, event_type: EventType, *, shared: bool = False) -> CacheEventBatch:
        self.seq += 1
        entries = [
            CacheEventEntry(key, 1, self.tokens[:CHUNK_SIZE] if event_type is EventType.STORE else (), 0)
            for key in self.keys
        ]
        tier = Tier.L2 if shared else Tier.L1
        return CacheEventBatch("instance", 1, self.seq, event_type, tier, "backend", entries, shared, 1.0)

    def decode(self, event_type: EventType = EventType.STORE, *, shared: bool = False) -> list[EventBatch]:
        return self.decoder.decode(encode_columns([self.batch(event_type, shared=shared)]), record_time=1.0)

    def decode_large(self) -> list[EventBatch]:
        rows = [self.batch(EventType.DELETE) for _ in range(1 + PIECE // 400)]
        return self.decoder.decode(encode_rows(rows), record_time=1.0)

    def apply(self, event_type: EventType, *, shared: bool = False) -> None:
        for batch in self.decode(event_type, shared=shared):
            self.directory.consume(Admission(batch, epoch=1, keep_tombstones=True))

    def share(self) -> None:
        self.apply(EventType.STORE, shared=True)
        self.apply(EventType.DELETE, shared=True)

    def look_up(self) -> None:
        self.directory.lookup(self.keys)
        self.directory.expand_groups(self.keys)

    def forget(self) -> None:
        self.directory.settle("instance")
        self.directory.expire(2.0)
        self.directory.fence("instance")

    def keep(self) -> None:
        directory = KeyDirectory(chunk_size=CHUNK_SIZE, max_chunks=1024)
        shadow = Shadow(directory.parts)
        shadow.freeze()
        shadow.release()
        shadow.close()
        state = directory.parts.state
        derive(state.addresses)
        index_all(state.addresses, state.tables.tokens.reshape(-1))
        unindex_all(state.addresses)

    def steps(self) -> list[tuple[str, Callable[[], object]]]:
        return [
            ("decode columns", self.decode),
            (
                "decode rows",
                lambda: self.decoder.decode(encode_rows([self.batch(EventType.STORE)]), record_time=1.0),
            ),
            ("decode in pieces", self.decode_large),
            ("apply stores", lambda: self.apply(EventType.STORE)),
            ("apply deletes", lambda: self.apply(EventType.DELETE)),
            ("apply to a shared pool", self.share),
            ("store again", lambda: self.apply(EventType.STORE)),
            ("match", lambda: self.directory.match(self.tokens, Namespace("model", "", 1))),
            ("look keys up", self.look_up),
            ("list keys", lambda: self.directory.list_keys(None, "", "", 0, 10)),
            ("forget", self.forget),
            ("capture and restore", self.keep),
        ]


@cache
def warm_up() -> None:
    """Run all steps, once a process: afterwards no request waits for a kernel."""
    began = time.perf_counter()
    logger.info("loading kernels: a second, or a minute or two where they are compiled for the first time")
    for _, run in _Warmup().steps():
        run()
    logger.info("kernels loaded in %.1f s", time.perf_counter() - began)
    forget_unused(Path(_config.CACHE_DIR))


def forget_unused(folder: Path) -> None:
    """Note that a cache folder is in use, and remove those of other versions beside it that are not any more.

    A folder that was not named by `kernel.cache_name` has a neighbourhood of its own and is left alone.
    """
    if folder.name != cache_name(Path(__file__).parent):
        return
    # Another process may do the same at this moment, or the folder may be on a read-only disk.
    with contextlib.suppress(OSError):
        os.utime(folder)
        for other in folder.parent.iterdir():
            if time.time() - other.stat().st_mtime > KEEP_UNUSED:
                shutil.rmtree(other, ignore_errors=True)


def main() -> int:
    """Run all steps with a progress bar on standard error; return the exit status."""
    began = time.monotonic()
    console = Console(stderr=True)
    columns = (
        TextColumn("Compiling kernels"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    steps = _Warmup().steps()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(steps))
        for name, run in steps:
            progress.update(task, description=name)
            run()
            progress.advance(task)
        progress.update(task, description="done")
    forget_unused(Path(_config.CACHE_DIR))
    console.print(f"Kernels are compiled and cached ({time.monotonic() - began:.0f} s).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
