"""The daemon's report on an engine reaches the client unchanged."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edged.backends.contract import Composition, Recipe
from edged.client.calls import engine_info
from edged.engines import report
from edged.engines.engine import PlannedEngine
from edged.message_mapper import to_message
from edged.proto import operations_pb2 as pb
from edged.store.store import Store
from tests.unit.control_room import key_of, model, planned_model, record_of

COMPOSITION = Composition(
    layers={"fp16": 20, "fp32": 1},
    nodes={"CPUExecutionProvider": {"Loop": 1}, "CUDAExecutionProvider": {"Add": 2, "Conv": 20}},
    fallback=("1 Loop runs on the CPU",),
    kept=("Softmax s: its values are small",),
    notes=("a note",),
)


def test_engine_report_full_record_reaches_the_client(tmp_path: Path) -> None:
    of, recipe = model(), Recipe("onnxruntime", "cuda:0", "fp16")
    key = key_of(of, recipe)
    about = {"ahead": "sm_86", "load": 0.25, "adopted_from": "abc", "standard": "s", "shared_by": "dock"}
    record = record_of(key, recipe, composition=COMPOSITION, **about)
    planned = planned_model()
    planned.engines = {key.digest: PlannedEngine(key, recipe)}
    planned.engines[key.digest].adopt(record)
    (reported,) = report.engines({"m": planned}, Store(tmp_path), "")
    seen = engine_info(to_message(reported, pb.Engine))
    expected = msgspec.to_builtins(reported)
    found = seen.json()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == value, name


def test_engine_report_missing_engine_has_no_composition(tmp_path: Path) -> None:
    of, recipe = model(), Recipe("openvino")
    planned = planned_model()
    key = key_of(of, recipe)
    planned.engines = {key.digest: PlannedEngine(key, recipe)}
    (reported,) = report.engines({"m": planned}, Store(tmp_path), "")
    assert engine_info(to_message(reported, pb.Engine)).composition == Composition()
