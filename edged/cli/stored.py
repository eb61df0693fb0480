"""Models of the folder on disk, told as a daemon tells of those that it serves."""

from __future__ import annotations

from typing import Any

import msgspec

from edged.client.operations import ModelInfo, Shapes, TensorInfo
from edged.decoding import ready
from edged.engines.plan import PlannedModel
from edged.engines.shape_book import shape_report
from edged.models.finding import Reason


def model_info(name: str, planned: PlannedModel) -> ModelInfo:
    """A model as the disk has it: no daemon serves it."""
    model = planned.model
    signature = model.inspection.signature if model else None
    found = Reason.of(planned.problem)
    return ModelInfo(
        name=name,
        version=planned.entry.version,
        digest=model.digest if model else "",
        state="refused" if planned.problem else "stored",
        reason=str(planned.problem or ""),
        family=(model.recognition.family or "") if model else "",
        engine="",
        backend="",
        inputs=tuple(TensorInfo(s.name, s.datatype, s.dims) for s in signature.inputs) if signature else (),
        outputs=tuple(TensorInfo(s.name, s.datatype, s.dims) for s in signature.outputs) if signature else (),
        settings=planned.entry.settings,
        swaps=0,
        notes=model.notes if model else (),
        shapes=_shapes(planned),
        repair=model.repair if model else None,
        category=found.category,
        stage=found.stage,
    )


def _shapes(planned: PlannedModel) -> Shapes | None:
    report = shape_report(planned)
    return None if report is None else msgspec.convert(_plain(msgspec.to_builtins(report)), ready(Shapes))


def _plain(report: dict[str, Any]) -> dict[str, Any]:
    """A report in the words of the client library."""
    for each in report["inputs"]:
        for kind in ("serving", "wanted", "seen"):
            if each[kind] is not None:
                each[kind]["usual"] = each[kind]["optimum"]
    return report
