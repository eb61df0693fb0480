"""What a runtime says about a model, told with something to do; and asking it without leaving anything behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from edged.backend import one_node
from edged.backend.contract import Order, Recipe, Signature
from edged.backend.null import BACKEND
from edged.build import jobs, reach, trial
from edged.build.extent import Extent
from edged.errors import EngineUnusable, NotTaken
from edged.model.finding import Category


def job(opset: int, nodes: dict[str, str] | None = None) -> jobs.Check:
    order = Order("model.onnx", Signature((), ()), Recipe("onnxruntime"), None, (), "")
    return jobs.Check(order, {"ai.onnx": opset}, 10, nodes or {}, None, Extent())


def remedy(operator: str, opset: int) -> str:
    error = NotTaken("said", "not_implemented", operator, "nms")
    found = trial.refused(job(opset), error, "ONNX Runtime 1")
    assert found.category is Category.NOT_IMPLEMENTED
    return found.remedy


def test_a_plugin_of_tensorrt_is_not_to_be_cast_or_converted() -> None:
    assert "plugin of TensorRT" in remedy("EfficientNMS_TRT", 17)


def test_no_repair_is_offered_where_none_would_help() -> None:
    """Repairs write a model in an older opset, never in a newer one."""
    assert "--convert" not in remedy("BatchNormalization", 6)
    known = reach.Reach("1", 7, 26, 13)
    found = trial.opset(job(1), BACKEND, known, "ONNX Runtime 1")
    assert found is not None
    assert found.category is Category.OPSET_TOO_OLD
    assert "--convert" not in found.remedy


def test_a_node_that_nobody_knows_is_not_called_by_an_empty_name() -> None:
    class Knowing:
        def operators(self) -> dict[str, dict[str, int]]:
            return {"ai.onnx": {"Relu": 6}}

    for operator in ("mine.Call", "Nope"):
        found = trial.operators(job(17, {operator: ""}), Knowing(), "OpenVINO 1")  # type: ignore[arg-type]
        assert found is not None
        assert found.message.startswith("the model uses")


def test_asking_a_runtime_puts_no_file_where_a_kill_would_leave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = one_node.relu(13, 7)
    seen: list[bytes] = []

    class Listening(type(BACKEND)):  # type: ignore[misc]
        def check(self, model: Path) -> None:
            assert not list(tmp_path.iterdir())
            seen.append(model.read_bytes())
            if len(seen) > 1:
                raise EngineUnusable("no")

    assert reach.takes(Listening(), model)
    assert not reach.takes(Listening(), model)
    assert seen == [model, model]
