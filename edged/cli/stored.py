"""Models of the folder on disk, told as a daemon tells of those that it serves."""

from __future__ import annotations

from edged.api_types import ModelInfo, TensorInfo
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
        shapes=shape_report(planned),
        repair=model.repair if model else None,
        category=found.category,
        stage=found.stage,
    )
