"""The demo: a broker, a processor and a fleet of cache servers on one machine, every answer checked.

Everything is the real thing and in a process of its own: events go through a Kafka broker into `blendstream
serve`, and what is shown was asked over HTTP. Only the KV itself is left out; the servers cache the fact of
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

REQUESTS: Final = 400
SECONDS: Final = 20.0
"""Time for serving prompts; set-up, the lost batch and the lost server come on top."""


def run(
    broker: str = "embedded",
    trace: Path | None = None,
    *,
    requests: int = REQUESTS,
    seconds: float = SECONDS,
    plain: bool = False,
) -> int:
    """Run the demo in the foreground; must be called in the main thread.

    Args:
        broker: `embedded`, `kafka` or `docker`.
        trace: a block trace to replay in place of prompts over documents.
        requests: prompts to serve at most.
        seconds: time after which no further round of prompts is begun.
        plain: lines of text in place of the live view, as where the output is no terminal.

    Returns:
        The exit status: 0, 1 if an answer was wrong or something failed, 130 after Ctrl-C.
    """
    from api.demo.main import run as run_demo

    return run_demo(broker, trace, requests=requests, seconds=seconds, plain=plain)
