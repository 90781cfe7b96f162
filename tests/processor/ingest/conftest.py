"""Sources that stop with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.processor.ingest.reading import Reader


@pytest.fixture
def read() -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def start(bootstrap: str, topic: str, **settings: Any) -> Reader:
        readers.append(Reader(bootstrap, topic, **settings))
        return readers[-1]

    yield start
    for reader in readers:
        reader.source.stop()
        reader.source.close()
