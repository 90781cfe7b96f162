"""The scrape, parsed as Prometheus would."""

from __future__ import annotations

import time

import pytest
from prometheus_client import REGISTRY, parser
from prometheus_client.openmetrics import parser as openmetrics

from processor.metrics import PREFIX, TABLE
from producer.events import CacheEventBatch, EventType, Tier
from tests.api.serving import MODEL, Serving, entries_of, serving, store, tokens

SEQUENCE = tokens(1, 2, 3, 4, 5, 6, 7, 8)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(server: Serving) -> Samples:
    families = parser.text_string_to_metric_families(server.client.metrics())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def test_every_metric_of_the_table_is_in_a_scrape_with_its_type_help_and_labels() -> None:
    with serving(event_transport="kafka", kafka_bootstrap_servers="127.0.0.1:1", enable_push=True) as server:
        server.emit(store(entries_of(SEQUENCE)))
        families = {f.name: f for f in parser.text_string_to_metric_families(server.client.metrics())}
    for name, kind in TABLE.items():
        family = families.pop(PREFIX + name.removesuffix("_total"))
        assert (family.type, family.documentation) == (kind.type, kind.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(kind.labels)
    assert set(families) == {
        "lmcache_coordinator_key_directory_placements",
        "lmcache_coordinator_key_directory_placement_bytes",
    }


def test_a_gap_shows_as_one_until_its_batches_have_come(server: Serving) -> None:
    server.emit(store([], 1, instance_id="whole"), store([], 4, instance_id="holed"))
    before = scrape(server)
    assert value(before, "blendstream_gap_detected", instance_id="holed") == 1
    assert value(before, "blendstream_gap_detected", instance_id="whole") == 0
    assert value(before, "blendstream_lost_batches", instance_id="holed") == 3
    assert value(before, "blendstream_gaps_total") == 1
    server.emit(*(store([], seq, instance_id="holed") for seq in (3, 1, 2)))
    after = scrape(server)
    assert value(after, "blendstream_gap_detected", instance_id="holed") == 0
    assert value(after, "blendstream_lost_batches", instance_id="holed") == 0
    assert value(after, "blendstream_gaps_cleared_total") == 1


def test_batches_are_counted_by_result_and_entries_by_type(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE), 3, incarnation=2))
    server.emit(store([], 1, incarnation=2), store([], 1, incarnation=2), store([], 1, incarnation=1))
    assert server.http.post("/events", content=b"{").status_code == 422
    samples = scrape(server)
    for result, count in {"admitted": 1, "repaired": 1, "duplicate": 1, "stale": 1, "undecodable": 1}.items():
        assert value(samples, "blendstream_ingest_batches_total", result=result) == count
    assert value(samples, "blendstream_ingest_entries_total", event_type="store") == 2
    assert value(samples, "blendstream_ingest_entries_total", event_type="delete") == 0


def test_placements_are_counted_by_tier_under_both_names(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE)), store(entries_of(SEQUENCE[:4]), 2, tier=Tier.L2, backend="fs"))
    samples = scrape(server)
    for prefix in ("blendstream_directory", "lmcache_coordinator_key_directory"):
        assert value(samples, f"{prefix}_placements", tier="l1") == 2
        assert value(samples, f"{prefix}_placements", tier="l2") == 1
        assert value(samples, f"{prefix}_placement_bytes", tier="l1") == 14
    assert value(samples, "blendstream_directory_keys") == 2
    held = {"instance_id": "a", "tier": "l1", "backend": "dram"}
    assert value(samples, "blendstream_instance_placement_bytes", **held) == 14
    assert value(samples, "blendstream_blend_contents") == 2
    assert 0 < (value(samples, "blendstream_state_capacity_used_ratio") or 0) < 1


def test_blend_lookups_are_timed_and_their_tokens_counted_once(server: Serving) -> None:
    # Two chunks of one token each overlap in the query: 1 1 1 1 1 has matches at 0 and at 1.
    server.emit(store(entries_of(tokens(1, 1, 1, 1, 1, 1, 1, 1))))
    assert len(server.client.blend_lookup(tokens(1, 1, 1, 1, 1), MODEL)) == 2
    samples = scrape(server)
    assert value(samples, "blendstream_blend_lookup_seconds_count") == 1
    assert value(samples, "blendstream_blend_matches_total") == 2
    assert value(samples, "blendstream_blend_hit_tokens_total") == 5


def test_the_age_of_events_is_measured_where_the_emitter_gave_its_time(server: Serving) -> None:
    server.emit(store([], 1, ts=time.time() - 20), store([], 2, ts=0))
    samples = scrape(server)
    assert value(samples, "blendstream_event_age_seconds_count") == 1
    assert value(samples, "blendstream_event_age_seconds_bucket", le="10.0") == 0
    assert value(samples, "blendstream_event_age_seconds_bucket", le="30.0") == 1


def test_the_series_of_a_departed_instance_go_away(server: Serving) -> None:
    server.emit(store(entries_of(SEQUENCE)))
    assert 'instance_id="a"' in server.client.metrics()
    server.client.depart("a")
    assert 'instance_id="a"' not in server.client.metrics()


def test_a_fence_is_counted(server: Serving) -> None:
    server.emit(store([], incarnation=1), store([], incarnation=2))
    assert value(scrape(server), "blendstream_fences_total") == 1


def test_an_unknown_lag_is_absent_rather_than_zero() -> None:
    with serving(event_transport="kafka", kafka_bootstrap_servers="127.0.0.1:1") as server:
        samples = scrape(server)
    assert value(samples, "blendstream_consumer_lag_seconds") is None
    assert value(samples, "blendstream_ready") == 0


def test_names_with_quotes_and_line_ends_survive_the_format(server: Serving) -> None:
    odd = 'a"b\\c\nd ü'
    server.emit(store([], instance_id=odd))
    assert value(scrape(server), "blendstream_gap_detected", instance_id=odd) == 0


def test_openmetrics_is_given_to_whom_asks_for_it(server: Serving) -> None:
    answer = server.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics.text_string_to_metric_families(answer.text)}  # type: ignore[no-untyped-call]
    assert "blendstream_ready" in names


def test_the_registry_is_the_services_own(server: Serving) -> None:
    assert server.client.metrics()
    assert not any(family.name.startswith(PREFIX) for family in REGISTRY.collect())


def test_metrics_can_be_switched_off() -> None:
    with serving(disable_metrics=True) as server:
        assert server.http.get("/metrics").status_code == 404


def test_access_and_config_batches_are_told_apart(server: Serving) -> None:
    keys = entries_of(SEQUENCE)
    server.emit(store(keys), CacheEventBatch("a", 1, 2, EventType.ACCESS, Tier.L1, "", keys))
    assert value(scrape(server), "blendstream_ingest_entries_total", event_type="access") == 2


@pytest.mark.parametrize("path", ["/metrics", "/readyz", "/healthz"])
def test_probes_may_ask_with_head(server: Serving, path: str) -> None:
    assert server.http.head(path).status_code == 200
