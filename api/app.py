"""The ASGI application: the routes over one service, and the pool of threads that heavy requests run in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from starlette.applications import Starlette

from api.http import route_errors
from api.routes import Routes
from processor.service import Service

POOL_THREADS: Final = 4


def create_app(service: Service) -> Starlette:
    """The application that serves `service`, whose start and stop are the caller's."""
    pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="request")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        pool.shutdown(wait=False, cancel_futures=True)

    app = Starlette(
        routes=Routes(service, pool).table(), exception_handlers=route_errors(), lifespan=lifespan
    )
    # A path that differs by its last slash names another instance; it is not to be redirected.
    app.router.redirect_slashes = False
    return app
