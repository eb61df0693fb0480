"""The method EngineReport: which engine it is about, and what it returns without pictures."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from edged.api.grpc.engine_report import EngineReportHandlers
from edged.api.grpc.rpc import Context
from edged.backends.contract import Recipe
from edged.engines.controller import Controller
from edged.engines.engine import PlannedEngine
from edged.errors import EdgedError, InvalidInput, NotFound, Refused
from edged.proto import operations_pb2 as pb
from edged.store.judgement import Judgement, WorstFrame
from edged.store.record import Blocks
from edged.store.store import Store
from tests.unit.control_room import key_of, model, planned_model, record_of

RECIPE, MISSING = Recipe("openvino", precision="int8"), Recipe("openvino", precision="bf16")


@pytest.fixture
def handlers(tmp_path: Path) -> EngineReportHandlers:
    """Return the handlers of a daemon with a rejected int8 engine, and a bf16 engine that is not built yet."""
    of, planned, store = model(), planned_model(), Store(tmp_path)
    key = key_of(of, RECIPE)
    worst = (WorstFrame("1.jpg", "hall", {"recall": 0.0}),)
    judged = Judgement("c1", "different", "recall 0.5 is below 0.9", 100, 0, 500, {"recall": 0.5}, worst=worst)
    record = record_of(key, RECIPE, accepted=False, judgement=judged, blocks=Blocks((5.0,), (9.0,)))
    store.strip(record)
    for recipe in (RECIPE, MISSING):
        planned.engines[key_of(of, recipe).digest] = PlannedEngine(key_of(of, recipe), recipe)
    planned.engines[key.digest].adopt(record)
    return EngineReportHandlers(cast(Controller, SimpleNamespace(models={"m": planned}, store=store)))


def ask(handlers: EngineReportHandlers, engine: str, **fields: bool) -> pb.EngineReportResponse:
    return asyncio.run(handlers.engine_report(pb.EngineReportRequest(engine=engine, **fields), Context("test")))


KEY, OTHER = key_of(model(), RECIPE).digest, key_of(model(), MISSING).digest


def test_engine_report_as_json_has_the_whole_judgement(handlers: EngineReportHandlers) -> None:
    answer = ask(handlers, KEY[:12], json=True)
    found = json.loads(answer.content)
    assert answer.key == found["engine"]["key"] == KEY
    assert found["judgement"]["worst"][0]["name"] == "1.jpg"
    assert found["blocks"] == {"engine": [5.0], "reference": [9.0]}
    assert found["models"] == ["m"]


def test_engine_report_as_a_page_without_frames_has_no_pictures(handlers: EngineReportHandlers) -> None:
    for pictures, why in ((True, b"no longer kept"), (False, b"The pictures were left out, as requested.")):
        text = ask(handlers, KEY, pictures=pictures).content
        assert text.startswith(b"<!doctype html>")
        assert why in text
        assert b"<img" not in text


@pytest.mark.parametrize(
    ("engine", "error"),
    [("abc", InvalidInput), ("", InvalidInput), ("f" * 64, NotFound), ("<script>", NotFound), (OTHER, Refused)],
)
def test_engine_report_of_no_engine_says_why(
    handlers: EngineReportHandlers, engine: str, error: type[EdgedError]
) -> None:
    with pytest.raises(error) as raised:
        ask(handlers, engine)
    assert error is not Refused or str(raised.value).endswith("see: edged engines why m")
