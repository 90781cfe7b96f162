"""The L2 pool that all cache servers mount: a folder with one file a chunk, which names the server that wrote
it.

Creating a file is atomic, so of several servers that write the same chunk one does and says so. What the pool
holds is what lies in the folder; nobody keeps a list of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from api.demo.oracle import Held
from api.demo.workload import Model
from producer.events import Namespace

_SALTED = "with-salt-"
_UNSALTED = "without-salt"


class Pool:
    """Access to the pool under `folder` for the fleet's models."""

    def __init__(self, folder: Path, models: Iterable[Model]) -> None:
        self._folder = folder
        self._models = {_slug(model.name): model for model in models}

    def read(self, held: Held) -> bool:
        """Whether the pool holds the chunk; if so it counts as used now."""
        try:
            os.utime(self._path(held))
        except FileNotFoundError:
            return False
        return True

    def write(self, held: Held, writer: str) -> bool:
        """Put a chunk in; whether it was not there before."""
        path = self._path(held)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x") as file:
                file.write(writer)
        except FileExistsError:
            return False
        return True

    def trim(self, keep: int) -> list[Held]:
        """Remove the least recently used chunks until `keep` are left; returns the removed ones."""
        found = sorted((path.stat().st_mtime_ns, path.name, held, path) for held, path in self._files())
        gone = found[: max(0, len(found) - keep)]
        for *_, path in gone:
            path.unlink()
        return [held for _, _, held, _ in gone]

    def content(self) -> dict[Held, str]:
        """Every chunk in the pool with the server that wrote it."""
        return {held: path.read_text() for held, path in self._files()}

    def _path(self, held: Held) -> Path:
        salt = held.namespace.cache_salt
        folder = _SALTED + salt if salt else _UNSALTED
        return self._folder / _slug(held.namespace.model_name) / folder / held.chunk_hash.hex()

    def _files(self) -> Iterator[tuple[Held, Path]]:
        for path in self._folder.glob("*/*/*"):
            model = self._models[path.parts[-3]]
            salt = path.parts[-2].removeprefix(_SALTED) if path.parts[-2] != _UNSALTED else ""
            yield Held(Namespace(model.name, salt, model.world_size), bytes.fromhex(path.name)), path


def _slug(model_name: str) -> str:
    return hashlib.sha256(model_name.encode()).hexdigest()[:12]
