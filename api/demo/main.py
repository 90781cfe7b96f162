"""Sets the stage, runs the story, and answers for the end of every process."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.text import Text

from api.client import ServerError, ServerUnavailable
from api.console import counted
from api.demo.children import ChildError
from api.demo.figures import Scraper
from api.demo.local import Local, NotSettledError
from api.demo.messages import Recipe
from api.demo.story import Story, StoryError
from api.demo.summary import print_summary
from api.demo.trace import TraceError
from api.demo.view import View
from api.demo.workload import Workload
from deploy.broker import BrokerError, BrokerKind, why_unavailable

INTERRUPTED = 130
FAILED = 1


def run(broker: str, trace: Path | None, *, requests: int, seconds: float, plain: bool) -> int:
    """See `api.demo.run`."""
    console = Console(highlight=False)
    if broker not in tuple(BrokerKind):
        return _refuse(console, f"--broker must be one of {', '.join(BrokerKind)}, got {broker!r}")
    lacking = why_unavailable(broker)
    if lacking is not None:
        return _refuse(console, f"no {broker} broker here: {lacking}")
    recipe = Recipe(requests, trace and trace.resolve())
    try:
        workload = recipe.workload()
    except TraceError as error:
        return _refuse(console, str(error))
    local = Local(broker, recipe)
    with _orderly_signals():
        try:
            with local, View(console, plain) as view:
                return _run(local, workload, view, seconds)
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal may be what went away
                console.print("stopped; no process is left behind")
            return INTERRUPTED
        except (
            ChildError,
            NotSettledError,
            StoryError,
            BrokerError,
            ServerError,
            ServerUnavailable,
        ) as error:
            console.print(Text("the demo failed: ", "red").append(str(error), "default"), soft_wrap=True)
            console.print(f"the logs of all its processes are in {local.folder}", soft_wrap=True)
            return FAILED


def _run(local: Local, workload: Workload, view: View, seconds: float) -> int:
    began = time.monotonic()
    tokens = sum(len(request.tokens) for request in workload.requests)
    view.say("blendstream demo", "bold")
    view.say(f"  workload   {workload.title}, {counted(len(workload.requests), 'prompt')}, {tokens:,} tokens")
    local.start_broker(lambda: view.say("             (a first start may have to fetch it)", "dim"))
    view.say(f"  broker     {local.kind} at {local.bootstrap}, ready after {time.monotonic() - began:.1f} s")
    mark = time.monotonic()
    local.start_processor(lambda: view.say("             (a first start compiles its kernels)", "dim"))
    view.say(f"  processor  blendstream serve at {local.url}, ready after {time.monotonic() - mark:.1f} s")
    reports = local.start_fleet(server.name for server in workload.servers)
    for server in workload.servers:
        view.say(
            f"  {server.name}   {server.model.name} on {server.model.world_size} GPUs, "
            f"{server.l1_chunks:,} chunks in L1"
        )
    view.say(f"  pool       L2, shared by all, {workload.pool_chunks:,} chunks")
    with Scraper(local.url) as scraper:
        story = Story(local, workload, view, scraper, seconds)
        story.begin(reports)
        story.serve()
        story.finish()
        print_summary(story, scraper, view)
    if story.checker.wrong:
        local.keep_folder = True
        view.say(f"the logs of all processes are in {local.folder}")
        return FAILED
    return 0


def _refuse(console: Console, message: str) -> int:
    console.print(Text("blendstream demo: ", "red").append(message, "default"), soft_wrap=True)
    return FAILED


@contextmanager
def _orderly_signals() -> Iterator[None]:
    """Make SIGTERM and a closed terminal end the demo as Ctrl-C does; none interrupts an end under way."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
