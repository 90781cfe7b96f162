"""The entry point of the `blendstream` command; what it can do is in `api.commands`.

Importing that takes a good part of a second, and a server's own parts a second more. A server that is told
to end meanwhile ends as one that serves does, so this module imports nothing of it before it has said so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType


def main() -> None:
    """Run the command; the entry point of the distribution."""
    with _ending_in_order() if sys.argv[1:2] == ["serve"] else contextlib.nullcontext():
        from api.commands import run

        run()


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """End with status 0 on SIGTERM and SIGINT, until somebody else takes the signals over."""
    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    # Nothing is open yet. An exception in the midst of an import might be caught there, or lost.
    os._exit(0)
