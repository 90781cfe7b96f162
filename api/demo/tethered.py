"""Runs a piece of Blendstream that must not outlive the demo, not even one that was killed.

The child's standard input is a pipe whose other end the demo holds. When that end closes, for whatever
reason, the child gets SIGTERM and ends in order.

    python -P -m api.demo.tethered broker KIND PORT
    python -P -m api.demo.tethered blendstream ARGUMENTS...
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def main() -> None:
    """Hold on to standard input and run what the arguments name."""
    threading.Thread(target=_end_with_stdin, name="tether", daemon=True).start()
    what, *arguments = sys.argv[1:]
    if what == "broker":
        from deploy.broker import serve_broker

        kind, port = arguments
        serve_broker(kind, int(port), say=lambda line: print(line, flush=True))
    else:
        from api.cli import main as blendstream

        sys.argv = [what, *arguments]
        blendstream()


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
