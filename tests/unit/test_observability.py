"""The dashboard, the alert rules and the runbook cover exactly the existing metrics and alarms."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edged.engines.alarms import AlarmKind
from edged.engines.engine import EngineState
from edged.engines.readiness import ReadyState
from edged.metrics import names
from edged.metrics.names import Metric
from tests import observed, promql

_METRICS = {metric.name: metric for metric in names.ALL}
_SCRAPED = ("instance", "job")  # labels that the scraper adds to each series
_QUERIES = observed.queries()
_IDS = [query.where for query in _QUERIES]
_RULES = observed.rules()


def _metric(name: str) -> Metric | None:
    """Return the metric of a series; None for a series of Prometheus itself."""
    if name == "up":
        return None
    if name in _METRICS and _METRICS[name].kind != "histogram":
        return _METRICS[name]
    base, _, part = name.rpartition("_")
    assert part in ("bucket", "sum", "count"), f"{name} is not a metric"
    assert base in _METRICS, f"{name} is not a metric"
    assert _METRICS[base].kind == "histogram", f"{base} is not a histogram"
    return _METRICS[base]


def _labels(name: str) -> set[str]:
    metric = _metric(name)
    found = {*_SCRAPED, *(metric.labels if metric is not None else ())}
    return found | {"le"} if name.endswith("_bucket") else found


@pytest.mark.parametrize("query", _QUERIES, ids=_IDS)
def test_query_uses_existing_metrics_and_labels(query: observed.Query) -> None:
    expression = promql.parse(query.expression)
    assert expression.selectors
    for selector in expression.selectors:
        assert set(selector.matchers) <= _labels(selector.name), selector
    known = set.union(*(_labels(selector.name) for selector in expression.selectors))
    for _, labels in expression.groupings:
        assert set(labels) <= known
    shown = {*re.findall(r"\{\{ ?(?:\$labels\.)?([a-z_]+) ?\}\}", query.shown)}
    remaining = set(expression.result) if expression.result is not None and _is_aggregated(query) else known
    assert shown <= remaining - {"le"}, f"{shown} of {remaining}"


def _is_aggregated(query: observed.Query) -> bool:
    """Return whether the result has the labels of the first grouping."""
    return re.match(r"\s*(histogram_quantile\([\d.]+,\s*)?(sum|max|avg|count)\b", query.expression) is not None


@pytest.mark.parametrize("query", _QUERIES, ids=_IDS)
def test_query_uses_each_metric_by_its_kind(query: observed.Query) -> None:
    """Counters are used as rates, histograms as quantiles, gauges directly."""
    expression = promql.parse(query.expression)
    for selector in expression.selectors:
        metric = _metric(selector.name)
        over_time = {"rate", "increase"} & set(selector.inside)
        if selector.name.endswith("_bucket"):
            assert "histogram_quantile" in selector.inside
            assert any("le" in labels for word, labels in expression.groupings if word == "by")
            assert over_time
        elif metric is not None and metric.kind in ("counter", "histogram"):
            is_level = "edged_cache_damaged_total > 0" in query.expression or " offset " in query.expression
            assert over_time or is_level, selector
        elif metric is not None:
            assert not over_time, selector
        assert selector.has_range == bool(over_time or "changes" in selector.inside), selector


@pytest.mark.parametrize("query", _QUERIES, ids=_IDS)
def test_query_names_existing_label_values(query: observed.Query) -> None:
    known = {
        "kind": {kind.value for kind in AlarmKind},
        "reason": {kind.value for kind in AlarmKind} | {"overtaken", "stale", "rate", "overwritten", "full"},
        "state": {state.value for state in (*ReadyState, *EngineState)},
        "outcome": {"success"} | {state.value for state in EngineState},
        "job": {"edged"},
    }
    for selector in promql.parse(query.expression).selectors:
        for label, value in selector.matchers.items():
            if not value.startswith("$"):
                assert set(value.split("|")) <= known[label], selector


def test_dashboard_shows_every_metric() -> None:
    shown = {
        metric.name
        for query in _QUERIES
        if query.where.startswith("panel")
        for selector in promql.parse(query.expression).selectors
        if (metric := _metric(selector.name)) is not None
    }
    assert shown == set(_METRICS)


def test_dashboard_panels_are_distinct_and_do_not_overlap() -> None:
    found = observed.dashboard()
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert next(panel["title"] for panel in panels if panel["type"] == "row") == "Is all well?"
    for panel in observed.panels():
        assert panel["description"].endswith("."), panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    assert [each["name"] for each in found["templating"]["list"]] == ["datasource", "box", "model", "camera"]
    assert found["schemaVersion"] >= 39


def test_dashboard_panels_select_the_chosen_boxes() -> None:
    for query in _QUERIES:
        if query.where.startswith("panel"):
            for selector in promql.parse(query.expression).selectors:
                assert selector.matchers.get("instance") == "$box", query.where
                for label in {"model", "camera"} & _labels(selector.name):
                    assert selector.matchers.get(label) == f"${label}", query.where


def test_dashboard_variables_use_existing_series() -> None:
    for variable in observed.dashboard()["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((.*), ([a-z]+)\)", variable["query"]["query"])
        assert asked is not None
        (selector,) = promql.parse(asked[1]).selectors
        assert asked[2] in _labels(selector.name)


@pytest.mark.parametrize("rule", _RULES, ids=[rule["alert"] for rule in _RULES])
def test_rule_has_severity_summary_and_runbook(rule: dict[str, dict[str, str]]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert "$labels.instance" in rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert page == "docs/observability.md"
    assert anchor in _sections(), anchor


def test_rule_names_are_unique() -> None:
    assert len({rule["alert"] for rule in _RULES}) == len(_RULES)


def test_rules_and_runbook_cover_every_kind_of_alarm() -> None:
    watched = {
        value
        for rule in _RULES
        for selector in promql.parse(rule["expr"]).selectors
        for label, value in selector.matchers.items()
        if selector.name in ("edged_alarms", "edged_model_degraded") and label in ("kind", "reason")
    }
    kinds = {kind.value for kind in AlarmKind}
    assert watched == kinds
    anchors = {rule["annotations"]["runbook"].partition("#")[2] for rule in _RULES}
    assert set(_sections()) == kinds | anchors
    assert all(len(text) > 100 for text in _sections().values())


def _sections() -> dict[str, str]:
    """Return the sections of the runbook by GitHub's anchor."""
    runbook = observed.GUIDE.read_text().partition("\n## Runbook\n")[2]
    parts = re.split(r"^### (.*)\n", runbook, flags=re.MULTILINE)[1:]
    return {
        title.lower() if "_" not in title else title: text for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_conditional_metrics_exist() -> None:
    assert observed.conditional()
    assert observed.conditional() <= set(_METRICS)


@pytest.mark.parametrize(
    "wrong",
    ["sum(a", "a{b}", "a{b=c}", "a{b>'1'}", "rate a", "unknown(a)", "sum by a", "a @ 5"],
)
def test_parse_invalid_promql_raises(wrong: str) -> None:
    with pytest.raises((ValueError, IndexError, StopIteration)):
        promql.parse(wrong)


def test_parse_returns_selectors_and_groupings() -> None:
    found = promql.parse('sum by (a, b) (rate(m_total{c="d", e!~"f|g"}[5m])) / on (a) n offset 1h > 1e3')
    assert [(each.name, each.matchers, each.has_range) for each in found.selectors] == [
        ("m_total", {"c": "d", "e": "f|g"}, True),
        ("n", {}, False),
    ]
    assert found.selectors[0].inside == ("sum", "rate")
    assert found.groupings == [("by", ("a", "b")), ("on", ("a",))]


def test_promtool_accepts_the_rules() -> None:
    """Runs if promtool is installed, or if PROMTOOL has its path."""
    tool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not tool:
        pytest.skip("promtool is not installed; it comes with Prometheus")
    scenarios = Path(__file__).parent.parent / "fixtures" / "alerts_test.yml"
    for arguments in (["check", "rules", str(observed.FOLDER / "alerts.yml")], ["test", "rules", str(scenarios)]):
        done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
