"""One side of a measurement: a process that prepares once and then runs a round each time it is asked for
one.

The parent writes JSON lines to standard input: first the parameters, then an empty object a round. The
worker answers each with one line of figures. Whatever else the process prints goes to standard error, so
that a chatty library cannot break the conversation. Runs under both interpreters.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

Figures = dict[str, float]
Round = Callable[[], Figures]
Parameters = dict[str, int]


def serve(prepare: Callable[[Parameters], Round]) -> None:
    """Prepare with the parameters that come in, then run rounds until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    run: Round | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        figures: Figures = {}
        if run is None:
            run = prepare(asked)
        else:
            gc.collect()
            figures = run()
        answers.write(json.dumps(figures) + "\n")
        answers.flush()


def seconds(work: Callable[[], object]) -> float:
    """The processor time that `work` takes.

    What is measured so runs on one thread and waits for nothing: on an idle machine this is the time by the
    clock, and on a busy one it does not count the neighbours.
    """
    start = time.process_time()
    work()
    return time.process_time() - start


def resident_bytes() -> int:
    """Physical memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
