"""What the processor says of itself, read from `/metrics` as Prometheus would read it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from prometheus_client.parser import text_string_to_metric_families

from api.client import Client, ServerError, ServerUnavailable

INTERVAL: Final = 0.25
"""Seconds from one scrape to the next."""
WINDOW: Final = 8
"""Scrapes that a rate is taken over."""

_PREFIX: Final = "blendstream_"
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of the metrics: the value of every series, by name without prefix and by labels."""

    at: float = 0.0
    series: dict[str, dict[Labels, float]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, at: float) -> Scrape:
        """Read Prometheus's text format."""
        series: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(_PREFIX):
                    by_label = series.setdefault(sample.name.removeprefix(_PREFIX), {})
                    by_label[tuple(sorted(sample.labels.items()))] = sample.value
        return cls(at, series)

    def total(self, name: str, **labels: str) -> float:
        """The sum over the series of that name whose labels include the given ones."""
        wanted = set(labels.items())
        return sum(value for found, value in self.series.get(name, {}).items() if wanted <= set(found))

    def by(self, name: str, label: str) -> dict[str, float]:
        """The value of every series of that name, by one label."""
        return {dict(labels).get(label, ""): value for labels, value in self.series.get(name, {}).items()}

    def gaps(self) -> list[str]:
        """Emitters whose `gap_detected` is 1."""
        return sorted(name for name, value in self.by("gap_detected", "instance_id").items() if value)


class Scraper:
    """Scrapes in a thread of its own.

    Attributes:
        latest: the last reading.
        most_behind: the greatest lag seen, in records.
        fastest: the most entries applied per second, over `WINDOW` scrapes.
    """

    def __init__(self, url: str) -> None:
        self.latest = Scrape()
        self.most_behind = 0.0
        self.fastest = 0.0
        self._client = Client(url)
        self._held: list[Scrape] = []
        self._fresh = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()

    def rate(self, name: str, **labels: str) -> float:
        """How fast a counter has grown lately, per second."""
        held = list(self._held)
        if len(held) < 2:
            return 0.0
        first, last = held[0], held[-1]
        return (last.total(name, **labels) - first.total(name, **labels)) / (last.at - first.at)

    def readings(self, timeout: float) -> Iterator[Scrape]:
        """Each new reading as it comes, until `timeout` seconds have passed."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            with self._fresh:
                fresh = self._fresh.wait(left)
            if fresh:
                yield self.latest

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL):
            try:
                scrape = Scrape.parse(self._client.metrics(), time.monotonic())
            except (ServerUnavailable, ServerError):
                # Whoever asks the processor itself finds out what is wrong with it; the view shows what it
                # last said.
                continue
            self._held = [*self._held[1 - WINDOW :], scrape]
            self.most_behind = max(self.most_behind, scrape.total("consumer_lag"))
            self.fastest = max(self.fastest, self.rate("ingest_entries_total"))
            with self._fresh:
                self.latest = scrape
                self._fresh.notify_all()
