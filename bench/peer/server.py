"""The peer's coordinator as its command serves it: uvicorn, HTTP events, blend lookup on. `server.py HOST
PORT`.
"""

from __future__ import annotations

import sys

import uvicorn
from lmcache.v1.mp_coordinator.app import create_app  # type: ignore[import-not-found]
from lmcache.v1.mp_coordinator.config import MPCoordinatorConfig  # type: ignore[import-not-found]

from bench import workload


def main() -> None:
    """Serve until killed."""
    host, port = sys.argv[1], int(sys.argv[2])
    config = MPCoordinatorConfig(
        host=host, port=port, chunk_size=workload.CHUNK_SIZE, enable_blend_lookup=True, metrics_enabled=False
    )
    # Neither side writes an access log while it is measured.
    uvicorn.run(create_app(config), host=host, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
