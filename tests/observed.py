"""The shipped dashboard and alert rules, for tests that compare them with the metrics."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent.parent / "docs" / "observability"
GUIDE = FOLDER.parent / "observability.md"


@dataclass(frozen=True)
class Query:
    """An expression, its place, and the text that shows its labels."""

    where: str
    expression: str
    shown: str


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return found


def panels() -> list[dict[str, Any]]:
    """Return the panels that show data."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


def queries() -> list[Query]:
    """Return the queries of the dashboard and of the alert rules."""
    found = [
        Query(f"panel {panel['title']!r}", target["expr"], target["legendFormat"])
        for panel in panels()
        for target in panel["targets"]
    ]
    found += [Query(f"annotation {each['name']!r}", each["expr"], "") for each in dashboard()["annotations"]["list"]]
    return found + [
        Query(f"alert {rule['alert']}", rule["expr"], " ".join(rule["annotations"].values())) for rule in rules()
    ]


def conditional() -> set[str]:
    """Return the metrics that, by the guide, exist only sometimes."""
    table = GUIDE.read_text().partition("| metric | exists if |\n")[2].partition("\n\n")[0]
    return set(re.findall(r"`([a-z_]+)`", table))
