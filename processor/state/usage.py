"""How full every compartment is: the bytes that the stream reported against the size that was declared.

A view over the directory's totals and the declared capacities, with the meaning that LMCache's coordinator
gives it. A pool that several servers mount is counted once, for the fleet, and its size is known only where
all who declare it agree. A compartment without a declared size has no ratio, which is not a ratio of 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from processor.state.capacity import Capacity
from processor.state.directory import Usage
from producer.events import Tier

Declared = Mapping[str, tuple[Capacity, ...]]
Place = tuple[Tier, str]


@dataclass(frozen=True, slots=True)
class CompartmentUsage:
    """One tier and backend of a server, or a shared pool.

    Attributes:
        capacity_bytes: 0 where no size was declared.
        usage_ratio: None where no size was declared; above 1 where more is held than that.
    """

    tier: Tier
    backend: str
    shared: bool
    used_bytes: int
    capacity_bytes: int
    usage_ratio: float | None


@dataclass(frozen=True, slots=True)
class InstanceUsage:
    """One server. It may hold bytes that outlived its registration.

    Attributes:
        declared_capacity: whether it declared the size of anything.
        modules: its own compartments, by tier and backend.
    """

    instance_id: str
    registered: bool
    declared_capacity: bool
    modules: list[CompartmentUsage]


@dataclass(frozen=True, slots=True)
class FleetUsage:
    """Every server that is registered, holds something or declared something; and the shared pools."""

    instances: list[InstanceUsage]
    shared_modules: list[CompartmentUsage]


def fleet_usage(held: Iterable[Usage], declared: Declared, registered: Iterable[str]) -> FleetUsage:
    """The usage of everything; instances by id, pools by tier and backend."""
    owned: dict[str, dict[Place, int]] = {}
    pooled: dict[Place, int] = {}
    for usage in held:
        # As in LMCache, what holds no bytes is not in use.
        if usage.size_bytes:
            used = pooled if usage.shared else owned.setdefault(usage.instance_id, {})
            used[usage.tier, usage.backend] = usage.size_bytes
    members = set(registered)
    sizes = _pool_sizes(declared)
    return FleetUsage(
        [
            _instance_usage(name, owned.get(name, {}), declared.get(name, ()), name in members)
            for name in sorted(members | owned.keys() | declared.keys())
        ],
        [_compartment(place, True, pooled[place], sizes.get(place, 0)) for place in sorted(pooled)],
    )


def instance_usage(
    instance_id: str, held: Iterable[Usage], declared: tuple[Capacity, ...], registered: bool
) -> InstanceUsage | None:
    """The usage of one server; None if it is not registered, holds nothing and declared nothing."""
    used = {
        (usage.tier, usage.backend): usage.size_bytes
        for usage in held
        if usage.instance_id == instance_id and not usage.shared and usage.size_bytes
    }
    if not (used or declared or registered):
        return None
    return _instance_usage(instance_id, used, declared, registered)


def _instance_usage(
    instance_id: str, used: Mapping[Place, int], declared: tuple[Capacity, ...], registered: bool
) -> InstanceUsage:
    sizes = {(capacity.tier, capacity.backend): capacity.capacity_bytes for capacity in declared}
    empty = {
        (capacity.tier, capacity.backend): 0
        for capacity in declared
        if not capacity.shared and (capacity.tier, capacity.backend) not in used
    }
    modules = [
        _compartment(place, False, size, sizes.get(place, 0))
        for place, size in sorted({**used, **empty}.items())
    ]
    return InstanceUsage(instance_id, registered, bool(declared), modules)


def _pool_sizes(declared: Declared) -> dict[Place, int]:
    claims: dict[Place, set[int]] = {}
    for capacities in declared.values():
        for capacity in capacities:
            if capacity.shared:
                claims.setdefault((capacity.tier, capacity.backend), set()).add(capacity.capacity_bytes)
    return {place: sizes.pop() for place, sizes in claims.items() if len(sizes) == 1}


def _compartment(place: Place, shared: bool, used: int, capacity: int) -> CompartmentUsage:
    ratio = used / capacity if capacity > 0 else None
    return CompartmentUsage(*place, shared, used, capacity, ratio)
