"""The alerting rules: a file that Prometheus can load, about series that there are, explained on a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from processor.metrics import PREFIX, TABLE

ROOT: Final = Path(__file__).parents[2]
RULES: Final[list[dict[str, Any]]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_asks_for_series_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    names = re.findall(rf"{PREFIX}(\w+)", rule["expr"])
    assert names
    labels = {"job", "instance"}
    for name in names:
        assert name in TABLE
        labels |= set(TABLE[name].labels)
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels
    assert set(re.findall(r"\{(\w+)=", rule["expr"])) <= labels


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_has_the_members_of_a_rule_and_a_pending_time_in_minutes(rule: dict[str, Any]) -> None:
    assert {"alert", "expr", "labels", "annotations"} <= set(rule) <= {
        "alert", "expr", "for", "labels", "annotations"
    }  # fmt: skip
    assert re.fullmatch(r"\d+m", rule.get("for", "1m"))


def test_every_alert_is_explained_on_the_page_for_operators() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    assert [rule["alert"] for rule in RULES if f"`{rule['alert']}`" not in page] == []
