"""The cache servers that registered, and when each was last heard from.

This is plain membership: where a server can be reached and that it lives. It hears of nothing but the
`/instances` routes: an event of a server is no heartbeat, since it may have lain in the log for hours. Ages
are measured with a monotonic clock, which no correction of the time of day can make jump; such a clock means
nothing to another process, so a checkpoint carries no ages, and what is restored counts as heard from at
that moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Instance:
    """A registered cache server, as it described itself.

    Attributes:
        ip: its address, or a name that leads there.
        http_port: where it takes requests.
        registration_time: seconds since the epoch, for display.
        metadata: whatever else it said.
        p2p_advertised_url: where its peers fetch KV; empty if they cannot.
        mq_port: where its peers ask it for KV, 0 if they cannot.
    """

    instance_id: str
    ip: str
    http_port: int
    registration_time: float
    metadata: dict[str, str] = field(default_factory=dict)
    p2p_advertised_url: str = ""
    mq_port: int = 0


class Registry:
    """Who is registered. All methods may be called from any thread.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._instances: dict[str, Instance] = {}
        self._heard: dict[str, float] = {}

    def __contains__(self, instance_id: object) -> bool:
        return instance_id in self._instances

    def __len__(self) -> int:
        return len(self._instances)

    def instances(self) -> list[Instance]:
        """Everyone, in the order of registration."""
        with self._lock:
            return list(self._instances.values())

    def register(self, instance: Instance) -> bool:
        """Enter a server, in the place of an earlier entry of its id; return whether there was one."""
        with self._lock:
            again = instance.instance_id in self._instances
            self._instances[instance.instance_id] = instance
            self._heard[instance.instance_id] = self._clock()
            return again

    def heard(self, instance_id: str) -> bool:
        """Note a heartbeat; return whether the server is registered."""
        with self._lock:
            if instance_id not in self._instances:
                return False
            self._heard[instance_id] = self._clock()
            return True

    def deregister(self, instance_id: str) -> bool:
        """Strike a server off; return whether it was registered."""
        with self._lock:
            self._heard.pop(instance_id, None)
            return self._instances.pop(instance_id, None) is not None

    def silent(self, timeout: float, since: float) -> list[str]:
        """Who was not heard from for more than `timeout` seconds, of which none before `since` counts."""
        with self._lock:
            now = self._clock()
            return [name for name, heard in self._heard.items() if now - max(heard, since) > timeout]

    def capture(self) -> list[dict[str, Any]]:
        """Every entry as plain data that JSON holds."""
        return [asdict(instance) for instance in self.instances()]

    def restore(self, data: Iterable[Mapping[str, Any]]) -> None:
        """Enter again what `capture` gave, as heard from now; for a registry that has no entry yet.

        Raises:
            TypeError: it is no such capture.
        """
        for entry in data:
            self.register(Instance(**entry))
