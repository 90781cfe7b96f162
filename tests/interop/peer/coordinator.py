"""LMCache's coordinator on uvicorn, made anew at `POST /fresh`. Run by the peer's Python: coordinator.py
PORT CHUNK.

A new app is a new, empty coordinator, and costs a hundredth of a new process. The apps' lifespans are not
run: they start controllers that talk to cache servers, of which there are none here.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from lmcache.v1.mp_coordinator.app import create_app  # type: ignore[import-not-found]
from lmcache.v1.mp_coordinator.config import MPCoordinatorConfig  # type: ignore[import-not-found]


class Coordinators:
    def __init__(self, chunk_size: int) -> None:
        self._config = MPCoordinatorConfig(
            chunk_size=chunk_size, enable_blend_lookup=True, metrics_enabled=False
        )
        self._app = create_app(self._config)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["path"] != "/fresh":
            await self._app(scope, receive, send)
            return
        self._app = create_app(self._config)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    uvicorn.run(
        Coordinators(int(sys.argv[2])),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        lifespan="off",
        log_level="warning",
        access_log=False,
    )
