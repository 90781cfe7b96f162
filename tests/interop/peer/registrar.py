"""Runs LMCache's registrar until it is terminated: registrar.py URL INSTANCE_ID INTERVAL.

Each registration that succeeds is a line `registered` on standard output. On SIGTERM the registrar
deregisters, as a cache server's does when it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import httpx
from lmcache.v1.mp_coordinator.registrar import keep_registered  # type: ignore[import-not-found]


async def run(url: str, instance_id: str, interval: float) -> None:
    async with httpx.AsyncClient(timeout=10.0) as client:
        registrar = asyncio.ensure_future(
            keep_registered(
                client,
                url,
                http_port=8000,
                instance_id=instance_id,
                advertise_ip="10.0.0.1",
                heartbeat_interval=interval,
                p2p_advertised_url="tcp://10.0.0.1:7000",
                mq_port=5555,
                on_registered=lambda: print("registered", flush=True),
            )
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, registrar.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await registrar


asyncio.run(run(sys.argv[1], sys.argv[2], float(sys.argv[3])))
