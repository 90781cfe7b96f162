"""How much each cache server can hold, as its `config` batches declare it.

The stream says how many bytes are held, never how many could be; the declarations are the denominator. One
declaration is one `config` batch a compartment, all with the same `capacity_revision`: a batch of a newer
revision starts the declaration anew, one of the same extends it, one of an older is late and changes nothing.
So a compartment that the newest declaration leaves out is gone. Revisions are compared within a cursor's
epoch, which rises with every restart of the emitter.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from processor.batch import Admission
from producer.events import EventType, Tier


@dataclass(frozen=True, slots=True)
class Capacity:
    """The declared size of one compartment; 0 bytes declare no limit, which is not the same as full."""

    tier: Tier
    backend: str
    capacity_bytes: int
    shared: bool


@dataclass(slots=True)
class _Declaration:
    stamp: tuple[int, int]
    compartments: dict[tuple[Tier, str], Capacity]


class CapacityRegistry:
    """The newest declaration of every instance; a consumer of the stream, safe to read from any thread."""

    name = "capacity"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._declarations: dict[str, _Declaration] = {}

    def consume(self, admission: Admission) -> None:
        """Take in a `config` batch; any other is none of its business."""
        batch = admission.batch
        if batch.event_type is not EventType.CONFIG or (admission.l1_void and batch.tier is Tier.L1):
            return
        stamp = (admission.epoch, batch.capacity_revision)
        capacity = Capacity(batch.tier, batch.backend, batch.capacity_bytes, batch.shared)
        with self._lock:
            declared = self._declarations.get(batch.instance_id)
            if declared is None or stamp > declared.stamp:
                declared = self._declarations[batch.instance_id] = _Declaration(stamp, {})
            if stamp == declared.stamp:
                declared.compartments[batch.tier, batch.backend] = capacity

    def fence(self, instance_id: str) -> None:
        """Nothing: a declaration is configuration and outlives the memory it describes."""

    def settle(self, instance_id: str) -> None:
        """Nothing: late declarations are told by their revision."""

    def expire(self, before: float) -> None:
        """Nothing: there are no tombstones here."""

    def forget(self, instance_id: str) -> None:
        """Drop what a departed instance declared."""
        with self._lock:
            self._declarations.pop(instance_id, None)

    def capture(self) -> list[dict[str, Any]]:
        """Every declaration as plain data that JSON holds."""
        with self._lock:
            return [
                {
                    "instance_id": instance_id,
                    "stamp": list(declared.stamp),
                    "compartments": [
                        [c.tier.value, c.backend, c.capacity_bytes, c.shared]
                        for c in declared.compartments.values()
                    ],
                }
                for instance_id, declared in self._declarations.items()
            ]

    def restore(self, data: Iterable[Mapping[str, Any]]) -> None:
        """Take back what `capture` gave; for a registry that has heard nothing yet."""
        for entry in data:
            epoch, revision = entry["stamp"]
            compartments = [
                Capacity(Tier(tier), backend, size, shared)
                for tier, backend, size, shared in entry["compartments"]
            ]
            with self._lock:
                self._declarations[entry["instance_id"]] = _Declaration(
                    (epoch, revision), {(c.tier, c.backend): c for c in compartments}
                )

    def get(self, instance_id: str) -> tuple[Capacity, ...]:
        """What an instance declared, in the order of its batches; empty if nothing."""
        with self._lock:
            declared = self._declarations.get(instance_id)
            return tuple(declared.compartments.values()) if declared else ()

    def get_all(self) -> dict[str, tuple[Capacity, ...]]:
        """What every instance declared."""
        with self._lock:
            return {i: tuple(d.compartments.values()) for i, d in self._declarations.items()}
