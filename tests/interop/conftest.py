"""Coordinators of both kinds for the interop tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from api.app import create_app
from processor.service import Config, Service
from tests.interop.fleet import CHUNK_SIZE
from tests.interop.peers import Coordinator, InProcess, PeerCoordinator, peer_coordinator
from tests.requirements import PEER_PYTHON

Ours = Callable[[], AbstractContextManager[Coordinator]]
"""Makes our coordinator, new and empty, in this process."""


@pytest.fixture(scope="session")
def peer() -> Iterator[PeerCoordinator]:
    """LMCache's coordinator, one process for all tests; each empties it first."""
    with peer_coordinator(PEER_PYTHON, CHUNK_SIZE) as coordinator:
        yield coordinator


@pytest.fixture(scope="session")
def ours() -> Iterator[Ours]:
    """Makes our coordinator without sockets or a housekeeper: a property test needs hundreds of them."""
    with start_blocking_portal() as portal:

        @contextmanager
        def make() -> Iterator[Coordinator]:
            config = Config(chunk_size=CHUNK_SIZE, enable_blend_lookup=True, max_chunks=1_024)
            transport = InProcess(create_app(Service(config)), portal)
            with httpx.Client(transport=transport, base_url="http://ours") as client:
                yield Coordinator(client)

        yield make
