"""The demo from start to end: serve prompts, lose a batch, deliver it late, lose a server, sum up.

Prompts come in rounds. Before a round is served each of its prompts is looked up, as a router would, and the
answer is compared with the truth; while it is served, lookups go on under load; after it, the demo waits
until all that was emitted has been applied.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from rich.text import Text

from api.demo.bar import prompt_bar, stretches
from api.demo.checker import Answer, Checker, Reuse
from api.demo.figures import Scraper
from api.demo.local import Local
from api.demo.messages import Deliver, Message, Report, Serve, Trim
from api.demo.oracle import Oracle
from api.demo.pool import Pool
from api.demo.view import Situation, View
from api.demo.workload import Request, Workload

ROUNDS: Final = 10
GAP_AFTER: Final = 4
CRASH_AFTER: Final = 7
"""Rounds after which the demo loses a batch, and a server."""
LAST_PROMPTS: Final = 20
"""Prompts that are asked once more at the end."""
CANDIDATES: Final = 12
"""Prompts among which the demo looks for one that a lost batch makes a difference to."""
SERVING_SHARE: Final = 0.6
"""The part of the time for serving that the prompts' timestamps are pressed into; lookups need the rest."""
FLAG_TIMEOUT: Final = 30.0
"""Seconds within which a gap must show, and must clear."""
UNDER_LOAD_INTERVAL: Final = 0.01
"""Seconds between lookups under load: enough to be felt, not so many that they are all there is."""


class StoryError(RuntimeError):
    """The processor did not do what the demo set out to show."""


@dataclass(slots=True)
class Outcome:
    """The figures of a run.

    Attributes:
        served: prompts served.
        seconds: time they took, lost batch and lost server not counted.
        speed: seconds of the workload's own time that passed in one.
        entries: entries emitted, and applied.
        keys: keys in the directory at the end.
        gap_shown: seconds from the next batch until `gap_detected` was 1 in a scrape.
        gap_cleared: seconds from the late delivery until it was 0 in a scrape.
        restarted: the server that was killed.
    """

    served: int = 0
    seconds: float = 0.0
    speed: float = math.inf
    entries: int = 0
    keys: int = 0
    gap_shown: float = math.nan
    gap_cleared: float = math.nan
    restarted: str = ""


class Story:
    """One run over a started `Local`; `begin`, `serve`, `finish`, in this order."""

    def __init__(
        self, local: Local, workload: Workload, view: View, scraper: Scraper, seconds: float
    ) -> None:
        self.oracle = Oracle(workload.requests)
        self.checker = Checker(local.client, self.oracle)
        self.reuse = Reuse()
        self.outcome = Outcome()
        self._local = local
        self.workload = workload
        self._view = view
        self._scraper = scraper
        self.seconds = seconds
        self._names = [server.name for server in workload.servers]
        self._pool = Pool(local.pool, {server.model for server in workload.servers})
        self._reports: dict[str, Report] = {}
        self._buried_entries = 0
        self._waiting = list(workload.requests)
        self._situation = Situation(scraper, self.checker, self.reuse, self._names)

    def begin(self, reports: Mapping[str, Report]) -> None:
        """Take the fleet's first reports and show the figures from now on."""
        self._view.watch(self._situation)
        self._settle(reports)

    def serve(self) -> None:
        """All prompts in rounds, with the lost batch and the lost server between them."""
        requests = self.workload.requests
        size = math.ceil(len(requests) / ROUNDS)
        span = requests[-1].at - requests[0].at
        if span:
            self.outcome.speed = span / (self.seconds * SERVING_SHARE)
        rounds = 0
        while self._waiting and self.outcome.seconds < self.seconds:
            if rounds == GAP_AFTER:
                self.lose_a_batch()
            if rounds == CRASH_AFTER:
                self.lose_a_server()
            now, self._waiting = self._waiting[:size], self._waiting[size:]
            began = time.monotonic()
            self._round(now, began - now[0].at / self.outcome.speed)
            self.outcome.seconds += time.monotonic() - began
            rounds += 1
        if rounds <= GAP_AFTER:
            self.lose_a_batch()
        if rounds <= CRASH_AFTER:
            self.lose_a_server()

    def lose_a_batch(self) -> None:
        """Keep one batch back, watch the gap show, deliver it late, watch the gap go."""
        before, name = self._least_known()
        request = before.request
        self._view.heading(f"{name} stores the KV of prompt {request.number}, and one batch gets lost")
        self._doing(f"{name} lost a batch")
        self._show(before, "before it is served")
        report = self._ask({name: Serve((request.number,), withhold=True)})[name]
        if not report.withheld:
            raise StoryError(f"{name} emitted no store for prompt {request.number}")
        began = time.monotonic()
        self._ask({name: Serve((request.number,))})
        self._await_flag(name, 1)
        shown = time.monotonic() - began
        self._settle(self._reports, gap=name)
        during = self.checker.ask(request)
        self._view.say(
            f"  gap_detected{{instance_id={name!r}}} is 1 in the metrics, {shown:.1f} s later", "bold red"
        )
        self._show(during, "served, but not reported")
        began = time.monotonic()
        self._ask({name: Deliver()})
        self._await_flag(name, 0)
        cleared = time.monotonic() - began
        self._settle(self._reports)
        after = self.checker.ask(request)
        self._view.say(f"  delivered late: gap_detected is 0 again, {cleared:.1f} s later", "bold green")
        self._show(after, "reported")
        if after.reused_tokens <= during.reused_tokens and after.places == during.places:
            raise StoryError("the batch that was delivered late changed no answer")
        self.outcome.gap_shown, self.outcome.gap_cleared = shown, cleared

    def lose_a_server(self) -> None:
        """Kill the fullest server and let it come back: its memory must be forgotten, the pool must not."""
        name = max(self._names, key=lambda name: len(self.oracle.l1[name]))
        held = len(self.oracle.l1[name])
        self._view.heading(f"{name} is killed with {held:,} chunks in memory, and comes back empty")
        self._doing(f"{name} restarts")
        self._buried_entries += self._reports[name].entries
        self._local.servers[name].kill()
        self._settle({name: self._local.start_server(name).answer()})
        self._view.say(
            f"  its memory is forgotten in every answer; {len(self.oracle.pool):,} chunks in the pool stay",
            "green",
        )
        self.outcome.restarted = name

    def finish(self) -> None:
        """Ask the last prompts once more and compare the directory as a whole."""
        self._doing("comparing the whole directory")
        for request in self.workload.requests[: self.outcome.served][-LAST_PROMPTS:]:
            self.checker.ask(request)
            self._view.tick()
        keys = self.checker.compare_directory()
        emitted = self._buried_entries + sum(report.entries for report in self._reports.values())
        applied = next(self._scraper.readings(FLAG_TIMEOUT)).total("ingest_entries_total")
        if applied != emitted:
            self.checker.wrong.append(f"{emitted:,} entries were emitted and {applied:,.0f} applied")
        self.outcome.keys, self.outcome.entries = keys, emitted

    def _round(self, requests: Sequence[Request], epoch: float) -> None:
        first, last = requests[0].number + 1, requests[-1].number + 1
        which = f"prompt {first}" if first == last else f"prompts {first} to {last}"
        which += f" of {len(self.workload.requests)}"
        self._doing(f"looking up {which}")
        for request in requests:
            answer = self.checker.ask(request)
            self.reuse.count(answer)
            self._situation.prompt = self._bar(answer)
            self._view.tick()
        self._doing(f"serving {which}")
        numbers: dict[str, list[int]] = defaultdict(list)
        for request in requests:
            numbers[request.server].append(request.number)
        again = cycle(requests)

        def look_up() -> None:
            self.checker.ask_under_load(next(again))
            self._view.tick()
            time.sleep(UNDER_LOAD_INTERVAL)

        serve = {name: Serve(tuple(mine), epoch, self.outcome.speed) for name, mine in numbers.items()}
        self._reports |= self._local.ask(serve, look_up)
        self.outcome.served += len(requests)
        # One server evicts from the pool, and only once the others' writes are in the log: who wrote last to
        # a shared pool is told by the clock, which is no finer than the time a change waits to be sent.
        self._settle(self._local.ask({self._names[0]: Trim(self.workload.pool_chunks)}, self._view.tick))

    def _ask(self, messages: Mapping[str, Message]) -> dict[str, Report]:
        reports = self._local.ask(messages, self._view.tick)
        self._reports |= reports
        return reports

    def _settle(self, reports: Mapping[str, Report], gap: str | None = None) -> None:
        self._reports |= reports
        self._local.settle(self._reports, gap)
        for name, report in self._reports.items():
            self.oracle.l1[name] = set(report.l1)
            self.oracle.withheld[name] = set(report.withheld)
        self.oracle.pool = self._pool.content()
        self.oracle.settle()

    def _await_flag(self, name: str, value: int) -> None:
        for scrape in self._scraper.readings(FLAG_TIMEOUT):
            self._local.check()
            self._view.tick()
            if scrape.by("gap_detected", "instance_id").get(name) == value:
                return
        raise StoryError(f"gap_detected of {name} did not turn {value} within {FLAG_TIMEOUT:g} s")

    def _least_known(self) -> tuple[Answer, str]:
        """The prompt to come that is known least of, and a server that must store something for it."""
        answers = [
            self.checker.ask(request) for request in (self._waiting or self.workload.requests)[:CANDIDATES]
        ]
        answer = min(answers, key=lambda answer: answer.reused_tokens / len(answer.request.tokens))
        request = answer.request
        if self._waiting:
            return answer, request.server
        others = [
            s.name for s in self.workload.servers if s.model == request.model and s.name != request.server
        ]
        return answer, others[0]

    def _doing(self, what: str) -> None:
        self._situation.doing = what
        self._view.tick()

    def _show(self, answer: Answer, what: str) -> None:
        share = answer.reused_tokens / len(answer.request.tokens)
        self._view.say(f"  {what}: {share:.0%} of its {len(answer.request.tokens):,} tokens are reusable")
        self._view.show(self._bar(answer))

    def _bar(self, answer: Answer) -> list[Text]:
        found = stretches(answer.request, answer.reused, answer.places.__getitem__)
        return prompt_bar(answer.request, found, self._view.look, self._names)
