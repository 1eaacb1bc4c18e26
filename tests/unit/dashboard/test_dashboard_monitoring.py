"""The example alerts and the Grafana dashboard: every metric and label in them exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.core import Metric

from pairbus.syphon import Syphon
from pairbus.syphon.web import SyphonCollector

EXAMPLES = Path(__file__).parents[3] / "examples" / "monitoring"
DOCS = Path(__file__).parents[3] / "docs"
LOCAL = "Endpoint=sb://contoso.example;SharedAccessKeyName=a;SharedAccessKey=b"


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((EXAMPLES / "pairbus.rules.yml").read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_every_alert_has_a_name_a_severity_and_a_sentence() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    board = json.loads((EXAMPLES / "grafana-dashboard.json").read_text(encoding="utf-8"))
    yield from (target["expr"] for panel in board["panels"] for target in panel["targets"])


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """The names of all metrics that are described, and the labels of each."""
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("reference/metrics.md", "dashboard.md")]
    rows = re.findall(r"^\| `(pairbus_\w+)` \| (\w+) \| ([^|]*) \|", "\n".join(pages), re.MULTILINE)
    found = {}
    for name, kind, labels in rows:
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            found[name + suffix] = set(re.findall(r"`(\w+)`", labels))
    return found


def test_what_is_described_of_a_syphon_is_what_it_has(known: dict[str, set[str]]) -> None:
    has = {family.name + ("_total" if family.type == "counter" else "") for family in syphon_metrics()}
    assert {name for name in known if name.startswith("pairbus_syphon_")} == has


def syphon_metrics() -> Iterator[Metric]:
    return SyphonCollector(Syphon(LOCAL, LOCAL)).collect()


def test_there_is_something_to_check() -> None:
    found = list(expressions())
    assert len(found) > 15
    assert all("pairbus_" in expression for expression in found)


@pytest.mark.parametrize("expression", list(expressions()))
def test_every_metric_and_label_exists(expression: str, known: dict[str, set[str]]) -> None:
    names = re.findall(r"pairbus_\w+", expression)
    assert set(names) <= set(known)
    for name, selector in re.findall(r"(pairbus_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)[!=~]", selector)) <= known[name]
    grouped = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in re.split(r",\s*", group)}
    assert grouped <= set().union(*(known[name] for name in names)) | {"le"}


def test_the_board_can_be_imported() -> None:
    board: dict[str, Any] = json.loads((EXAMPLES / "grafana-dashboard.json").read_text(encoding="utf-8"))
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(taken)) == len(taken)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
