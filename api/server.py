"""Serving a processor: the socket, the signals and the order of starting and stopping.

The socket is bound before anything else starts, so that a taken port costs nothing and says so. The server
listens from then on, while the service starts beside it. SIGTERM and SIGINT end the process with status 0,
also in the midst of the start: no new connection is taken, requests under way get a few seconds, then the
service stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import uvicorn

from api.app import create_app
from api.protocol import BoundedProtocol
from api.starting import Start, UntilStarted
from processor.service import Config, Service
from producer.errors import OperatorError

BACKLOG: Final = 2_048
GRACE: Final = 3
"""Seconds that requests under way are given at the end."""
SWITCH_INTERVAL: Final = 0.001
"""Seconds after which a thread in Python code must let another in; five times shorter than Python's own,
since the event loop shares the interpreter with the thread that reads Kafka."""


ADVICE: Final = {
    errno.EADDRINUSE: "; --port chooses another port",
    errno.EACCES: "; --port chooses another port",
    errno.EADDRNOTAVAIL: "; --host takes an address of this machine",
}
"""What to do when a port cannot be listened on, by why."""


class AddressError(OperatorError):
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
            f"cannot listen on {host}:{port}: {error.strerror}{ADVICE.get(error.errno or 0, '')}"
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
    """A uvicorn server that ends with status 0 on a signal, instead of raising the signal anew.

    Attributes:
        on_listening: called once it takes connections.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.on_listening: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self.started:
            self.on_listening()

    def end(self) -> None:
        """End soon, as on a signal; may be called from any thread."""
        self.should_exit = True

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


def serve(config: Config, say: Callable[[str], None]) -> None:
    """Run a processor until a signal ends it.

    Args:
        config: its settings.
        say: told in a line that the server listens, and in another one that it serves: that the state is
            restored and all routes answer. Either has the address.

    Raises:
        AddressError: the address cannot be listened on.
        CheckpointError: the folder of checkpoints, or the one in it, cannot be used.
        ConfigError: a setting is refused by what it is for.
    """
    # Until the loop takes signals over.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: sys.exit(0))
    with bind(config) as listener:
        sys.setswitchinterval(SWITCH_INTERVAL)
        address, socket_file = address_of(listener), _identity(config.uds)
        service = Service(config)
        server = make_server(service)

        def started() -> None:
            # What is loaded by now stays: no collection has to walk it again.
            gc.freeze()
            say(f"serving on {address}")

        def listening() -> None:
            say(f"listening on {address}")
            start.begin()

        start = Start(service, started, server.end)
        server.on_listening = listening
        try:
            server.run(sockets=[listener])
        finally:
            service.stop()
            # By now the path may be another server's, which took it over when this one no longer listened.
            if socket_file is not None and _identity(config.uds) == socket_file:
                Path(config.uds).unlink(missing_ok=True)
        start.check()


def _identity(path: str) -> tuple[int, int] | None:
    """Which file is at a path; None where there is none, or no path."""
    if not path:
        return None
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def make_server(service: Service) -> Server:
    """The HTTP server of a service, to be run on a bound socket; the service's start is the caller's."""
    config = service.config
    return Server(
        uvicorn.Config(
            UntilStarted(create_app(service), service),
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
