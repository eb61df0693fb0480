"""The daemon's report on a refused model reaches the client, with text and category."""

from __future__ import annotations

import pytest

from edged.api_types import ModelInfo
from edged.config import Health
from edged.engines import report
from edged.errors import ConfigError, EdgedError, EngineUnusable
from edged.message_mapper import to_message, to_struct
from edged.models.finding import Category, Finding, Stage
from edged.proto import operations_pb2 as pb
from tests.unit.control_room import planned_model


def across(sent: ModelInfo) -> ModelInfo:
    return to_struct(to_message(sent, pb.ModelStatus), ModelInfo)


CYCLE = Finding(Stage.GRAPH, Category.CYCLE, "the graph has a cycle", "export it again")


@pytest.mark.parametrize(
    ("problem", "stage", "category"),
    [
        (CYCLE.refusal(), "graph", "cycle"),
        (ConfigError("setting threads='x'"), "file", "settings"),
        (EngineUnusable("its host was lost"), "", ""),
    ],
)
def test_model_report_refused_has_words_and_category(problem: EdgedError, stage: str, category: str) -> None:
    planned = planned_model("m")
    planned.problem = problem
    reported = across(report.model(planned, (), Health(), None))
    assert (reported.state, reported.reason) == ("refused", str(problem))
    assert (reported.stage, reported.category) == (stage, category)


def test_model_report_shortens_settings_of_thousands_of_characters() -> None:
    planned = planned_model("m")
    names = ",".join(map(str, range(80)))
    planned.entry.settings.update({"decode.characters": "字" * 18_708, "names": names})
    reported = across(report.model(planned, (), Health(), None)).settings
    assert reported["names"] == names
    assert reported["decode.characters"].endswith("字... (18708 characters)")
    assert len(reported["decode.characters"]) < 100


def test_model_report_not_refused_has_no_category() -> None:
    reported = across(report.model(planned_model("m"), (), Health(), None))
    assert (reported.state, reported.stage, reported.category) == ("loading", "", "")
