"""What a directory is made of, for those who keep it on disk and bring it back.

The tables and the hash keys are arrays; names are Python objects; `meta` and `Parts` hold the rest. Whoever
changes any of it holds the write lock.
"""

from __future__ import annotations

from dataclasses import dataclass

from processor.state.entry_kernels import State
from processor.state.interning import Interner, RankedNames
from processor.state.mapping import MappedFiles
from processor.state.rwlock import RWLock
from producer.events import Tier


@dataclass(slots=True)
class Parts:
    """The parts of one directory.

    Attributes:
        groups: the object groups seen.
        heard: the instances heard since their last fence.
        seed: the secret that `state.keys` are derived from.
        blend: whether contents are indexed.
        mapped: the files that rows are mapped from, until they are moved into memory.
    """

    state: State
    lock: RWLock
    instances: RankedNames
    scopes: Interner[tuple[str, str]]
    sites: Interner[tuple[str, Tier, str, bool]]
    groups: set[int]
    heard: dict[str, None]
    seed: bytes
    blend: bool
    mapped: MappedFiles
