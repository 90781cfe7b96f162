from __future__ import annotations

from processor.state.capacity import Capacity
from processor.state.directory import Usage
from processor.state.usage import CompartmentUsage, fleet_usage, instance_usage
from producer.events import Tier

DRAM = Capacity(Tier.L1, "dram", 100, False)
POOL = Capacity(Tier.L2, "s3", 1_000, True)


def private(instance_id: str, tier: Tier, backend: str, size: int) -> Usage:
    return Usage(instance_id, tier, backend, False, 1, size)


def pool(size: int) -> Usage:
    return Usage("", Tier.L2, "s3", True, 1, size)


def test_a_ratio_is_what_is_held_of_what_was_declared() -> None:
    usage = instance_usage("a", [private("a", Tier.L1, "dram", 25)], (DRAM,), registered=True)
    assert usage is not None
    assert usage.modules == [CompartmentUsage(Tier.L1, "dram", False, 25, 100, 0.25)]


def test_what_was_not_declared_has_no_ratio_and_what_was_declared_without_limit_neither() -> None:
    held = [private("a", Tier.L1, "dram", 25), private("a", Tier.L2, "fs", 7)]
    usage = instance_usage("a", held, (Capacity(Tier.L2, "fs", 0, False),), registered=True)
    assert usage is not None
    assert [module.usage_ratio for module in usage.modules] == [None, None]


def test_more_than_was_declared_is_shown_as_it_is() -> None:
    usage = instance_usage("a", [private("a", Tier.L1, "dram", 250)], (DRAM,), registered=True)
    assert usage is not None
    assert usage.modules[0].usage_ratio == 2.5


def test_a_declared_compartment_is_shown_while_it_is_empty_and_a_pool_is_not_a_servers_own() -> None:
    usage = instance_usage("a", [pool(7)], (DRAM, POOL), registered=False)
    assert usage is not None
    assert usage.modules == [CompartmentUsage(Tier.L1, "dram", False, 0, 100, 0.0)]


def test_compartments_come_by_tier_and_backend() -> None:
    held = [
        private("a", Tier.L2, "fs", 1),
        private("a", Tier.L1, "gpu", 1),
        private("a", Tier.L1, "dram", 1),
    ]
    usage = instance_usage("a", held, (), registered=True)
    assert usage is not None
    assert [(m.tier, m.backend) for m in usage.modules] == [("l1", "dram"), ("l1", "gpu"), ("l2", "fs")]


def test_who_is_not_registered_holds_nothing_and_declared_nothing_is_unknown() -> None:
    held = [private("b", Tier.L1, "dram", 1), private("a", Tier.L1, "dram", 0)]
    assert instance_usage("a", held, (), registered=False) is None


def test_the_fleet_is_who_registered_holds_or_declared() -> None:
    fleet = fleet_usage([private("holds", Tier.L2, "fs", 1)], {"declared": (DRAM,)}, ["member"])
    assert [(i.instance_id, i.registered, i.declared_capacity) for i in fleet.instances] == [
        ("declared", False, True),
        ("holds", False, False),
        ("member", True, False),
    ]
    assert fleet.shared_modules == []


def test_a_pool_is_counted_once_with_the_size_that_all_agree_on() -> None:
    fleet = fleet_usage([pool(500)], {"a": (POOL,), "b": (POOL, DRAM)}, [])
    assert fleet.shared_modules == [CompartmentUsage(Tier.L2, "s3", True, 500, 1_000, 0.5)]


def test_a_pool_whose_size_is_disputed_has_none() -> None:
    other = Capacity(Tier.L2, "s3", 2_000, True)
    fleet = fleet_usage([pool(500)], {"a": (POOL,), "b": (other,)}, [])
    assert fleet.shared_modules == [CompartmentUsage(Tier.L2, "s3", True, 500, 0, None)]
