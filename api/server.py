"""Serving a processor: the socket, the signals and the order of starting and stopping.

The socket is bound before anything else starts, so that a taken port costs nothing and says so. SIGTERM and
SIGINT end the process with status 0: no new connection is taken, requests under way get a few seconds, then
the service stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import uvicorn
from starlette.applications import Starlette

from api.app import create_app
from api.protocol import BoundedProtocol
from processor.service import Config, Service

logger = logging.getLogger(__name__)

BACKLOG: Final = 2_048
GRACE: Final = 3
"""Seconds that requests under way are given at the end."""
SWITCH_INTERVAL: Final = 0.001
"""Seconds after which a thread in Python code must let another in; five times shorter than Python's own,
since the event loop shares the interpreter with the thread that reads Kafka."""


class AddressError(RuntimeError):
    """The server cannot listen where it was told to."""


def bind(config: Config) -> socket.socket:
    """The listening socket of a server.

    Raises:
        AddressError: the port or the path is taken, or cannot be used.
    """
    return _bind_path(Path(config.uds)) if config.uds else _bind_port(config.host, config.port)


def _bind_port(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise AddressError(f"cannot resolve --host {host!r}: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise AddressError(
            f"cannot listen on {host}:{port}: {error.strerror}; --port chooses another port"
        ) from None
    return listener


def _bind_path(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists():
            _remove_stale(path)
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise AddressError(f"cannot listen on --uds {path}: {error.strerror or error}") from None
    except AddressError:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on any more, and nothing else."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise AddressError(f"--uds {path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise AddressError(f"another process listens on --uds {path}")


class Server(uvicorn.Server):
    """A uvicorn server that ends with status 0 on a signal, instead of raising the signal anew."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals on the loop for as long as the server runs; off the main thread, leave them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
                # The end has begun: a second signal must not cut it short of its checkpoint.
                signal.signal(number, signal.SIG_IGN)


def serve(config: Config, announce: Callable[[str], None]) -> None:
    """Run a processor until a signal ends it.

    Args:
        config: its settings.
        announce: told the address once requests can be answered.

    Raises:
        AddressError: the address cannot be listened on.
        ConfigError: a setting is refused by what it is for.
    """
    with bind(config) as listener:
        # Until the loop takes signals over, and however long starting takes.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        sys.setswitchinterval(SWITCH_INTERVAL)
        address = address_of(listener)
        service = Service(config)
        try:
            service.start()
            # What is loaded by now stays: no collection has to walk it again.
            gc.freeze()
            app = create_app(service, on_start=lambda: announce(address))
            make_server(app, config).run(sockets=[listener])
        finally:
            service.stop()
            if config.uds:
                Path(config.uds).unlink(missing_ok=True)


def make_server(app: Starlette, config: Config) -> Server:
    """The HTTP server of an application, to be run on a bound socket."""
    return Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            loop="uvloop",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=config.timeout_keep_alive,
            timeout_graceful_shutdown=GRACE,
        )
    )


def address_of(listener: socket.socket) -> str:
    """The address of a bound socket as a client names it."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
