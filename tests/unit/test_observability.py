"""The dashboard, the alert rules and the runbook are of the metrics and alarms that there are, and of all of them."""

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
_SCRAPED = ("instance", "job")  # labels that whoever scrapes gives to each series
_QUERIES = observed.queries()
_IDS = [query.where for query in _QUERIES]
_RULES = observed.rules()


def _metric(name: str) -> Metric | None:
    """The metric that a series is of; None for one that is Prometheus' own."""
    if name == "up":
        return None
    if name in _METRICS and _METRICS[name].kind != "histogram":
        return _METRICS[name]
    base, _, part = name.rpartition("_")
    assert part in ("bucket", "sum", "count"), f"there is no metric {name}"
    assert base in _METRICS, f"there is no metric {name}"
    assert _METRICS[base].kind == "histogram", f"{base} is no histogram"
    return _METRICS[base]


def _labels(name: str) -> set[str]:
    metric = _metric(name)
    found = {*_SCRAPED, *(metric.labels if metric is not None else ())}
    return found | {"le"} if name.endswith("_bucket") else found


@pytest.mark.parametrize("query", _QUERIES, ids=_IDS)
def test_every_expression_is_of_metrics_and_labels_that_there_are(query: observed.Query) -> None:
    expression = promql.parse(query.expression)
    assert expression.selectors
    for selector in expression.selectors:
        assert set(selector.matchers) <= _labels(selector.name), selector
    known = set.union(*(_labels(selector.name) for selector in expression.selectors))
    for _, labels in expression.groupings:
        assert set(labels) <= known
    shown = {*re.findall(r"\{\{ ?(?:\$labels\.)?([a-z_]+) ?\}\}", query.shown)}
    kept = set(expression.result) if expression.result is not None and _is_aggregated(query) else known
    assert shown <= kept - {"le"}, f"{shown} of {kept}"


def _is_aggregated(query: observed.Query) -> bool:
    """Whether the labels of its result are those of its first grouping."""
    return re.match(r"\s*(histogram_quantile\([\d.]+,\s*)?(sum|max|avg|count)\b", query.expression) is not None


@pytest.mark.parametrize("query", _QUERIES, ids=_IDS)
def test_every_metric_is_used_as_what_it_is(query: observed.Query) -> None:
    """A counter as a rate, a histogram as a quantile, a gauge as itself."""
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
def test_every_value_that_is_named_is_one_that_there_is(query: observed.Query) -> None:
    known = {
        "kind": {kind.value for kind in AlarmKind},
        "reason": {kind.value for kind in AlarmKind} | {"rate"},
        "state": {state.value for state in (*ReadyState, *EngineState)},
        "outcome": {"success"} | {state.value for state in EngineState},
        "job": {"edged"},
    }
    for selector in promql.parse(query.expression).selectors:
        for label, value in selector.matchers.items():
            if not value.startswith("$"):
                assert set(value.split("|")) <= known[label], selector


def test_nothing_that_is_measured_is_left_out() -> None:
    shown = {
        metric.name
        for query in _QUERIES
        if query.where.startswith("panel")
        for selector in promql.parse(query.expression).selectors
        if (metric := _metric(selector.name)) is not None
    }
    assert shown == set(_METRICS)


def test_panels_are_told_apart_lie_side_by_side_and_ask_the_chosen_source() -> None:
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


def test_every_panel_is_of_the_boxes_that_were_chosen() -> None:
    for query in _QUERIES:
        if query.where.startswith("panel"):
            for selector in promql.parse(query.expression).selectors:
                assert selector.matchers.get("instance") == "$box", query.where
                for label in {"model", "camera"} & _labels(selector.name):
                    assert selector.matchers.get(label) == f"${label}", query.where


def test_variables_are_of_series_that_there_are() -> None:
    for variable in observed.dashboard()["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((.*), ([a-z]+)\)", variable["query"]["query"])
        assert asked is not None
        (selector,) = promql.parse(asked[1]).selectors
        assert asked[2] in _labels(selector.name)


@pytest.mark.parametrize("rule", _RULES, ids=[rule["alert"] for rule in _RULES])
def test_a_rule_says_how_bad_it_is_what_it_means_and_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert "$labels.instance" in rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert page == "docs/observability.md"
    assert anchor in _sections(), anchor


def test_rules_have_names_of_their_own() -> None:
    assert len({rule["alert"] for rule in _RULES}) == len(_RULES)


def test_every_kind_of_alarm_has_a_rule_and_a_section_of_the_runbook_and_nothing_else_has() -> None:
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
    """Of the runbook, by the anchor that GitHub gives them."""
    runbook = observed.GUIDE.read_text().partition("\n## Runbook\n")[2]
    parts = re.split(r"^### (.*)\n", runbook, flags=re.MULTILINE)[1:]
    return {
        title.lower() if "_" not in title else title: text for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_what_is_there_only_sometimes_is_in_the_list_of_metrics() -> None:
    assert observed.conditional()
    assert observed.conditional() <= set(_METRICS)


@pytest.mark.parametrize(
    "wrong",
    ["sum(a", "a{b}", "a{b=c}", "a{b>'1'}", "rate a", "unknown(a)", "sum by a", "a @ 5"],
)
def test_what_is_no_promql_is_told(wrong: str) -> None:
    with pytest.raises((ValueError, IndexError, StopIteration)):
        promql.parse(wrong)


def test_an_expression_is_taken_apart() -> None:
    found = promql.parse('sum by (a, b) (rate(m_total{c="d", e!~"f|g"}[5m])) / on (a) n offset 1h > 1e3')
    assert [(each.name, each.matchers, each.has_range) for each in found.selectors] == [
        ("m_total", {"c": "d", "e": "f|g"}, True),
        ("n", {}, False),
    ]
    assert found.selectors[0].inside == ("sum", "rate")
    assert found.groupings == [("by", ("a", "b")), ("on", ("a",))]


def test_prometheus_own_tool_finds_nothing_wrong_and_the_rules_do_what_they_say() -> None:
    """Where it is installed, or named by PROMTOOL."""
    tool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not tool:
        pytest.skip("there is no promtool; it comes with Prometheus")
    scenarios = Path(__file__).parent.parent / "fixtures" / "alerts_test.yml"
    for arguments in (["check", "rules", str(observed.FOLDER / "alerts.yml")], ["test", "rules", str(scenarios)]):
        done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
