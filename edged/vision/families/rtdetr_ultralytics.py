"""RT-DETR as exported by the ultralytics package.

One output of Q queries, no NMS needed, boxes as cx, cy, w, h in 0..1 of the input. Since 8.4.47 [N, Q, 6]: box, score,
class. Before, [N, Q, 4 + classes]: box, and a score for each class, after the sigmoid. With two classes both have six
columns; only the version (or the setting `decode.scores`) distinguishes them. The metadata names the head since 8.4.85;
before, six columns with both flags for NMS in the graph present and false are unique to RT-DETR.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from edged.errors import ConfigError
from edged.tensors import Array, TensorSpec
from edged.vision import settings as keys
from edged.vision.detections import Detections
from edged.vision.families.candidates import best_class, corners, to_detections
from edged.vision.families.contract import Claim, Decoder, Evidence, FamilySpec, Reading, Thresholds, require
from edged.vision.families.outputs import AT_LEAST_ONE, picture_tensor
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import Preprocess

NAME = "rtdetr-ultralytics"

_BEST, _EACH = "best", "each"  # a score with its class, or one for each class
_SIX_COLUMNS = (8, 4, 47)


class UltralyticsRtDetr(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`. Each query counts once, with its best class."""
        best_only = self.reading.form == _BEST
        width = 6 if best_only else self.reading.width(4)
        rows = picture_tensor(outputs, self.reading.outputs[0], index, AT_LEAST_ONE, width).astype(np.float32)
        if best_only:
            scores, class_ids = rows[:, 4], rows[:, 5]
        else:
            scores, best = best_class(rows[:, 4:])
            class_ids = best.astype(np.float32)
        size = np.array((self.preprocess.width, self.preprocess.height) * 2, np.float32)
        return to_detections(corners(rows[:, :4] * size), scores, class_ids, placement, thresholds, needs_nms=False)


def feed(plain: Preprocess) -> Preprocess:
    """Stretched, RGB in 0..1."""
    return msgspec.structs.replace(plain, fit=Fit.STRETCH)


def by_setting(evidence: Evidence) -> Claim:
    output = _table(evidence)
    require(evidence, NAME, "one output [N, queries, 6] or [N, queries, 4+classes]", output is not None)
    assert output is not None
    form = _form(evidence, output)
    if form is None:
        raise ConfigError(
            f"family={NAME} cannot distinguish two formats of {output.name}: set decode.scores=best (score and class)"
            " or decode.scores=each (a score for each of two classes)"
        )
    return _claim(evidence, f"the setting family={NAME}", output, form)


def by_metadata(evidence: Evidence) -> Claim | None:
    meta, output = evidence.metadata, _table(evidence)
    if meta.task != "detect" or output is None or evidence.picture is None:
        return None
    if meta.head not in (None, "RTDETRDecoder") or meta.end2end or meta.nms:
        return None
    why = _why(evidence, output)
    if why is None:
        return None
    form = _form(evidence, output)
    if form is None:
        return Claim(
            None, f"{why}, whose six columns are two formats: set decode.scores=best, decode.scores=each or family=raw"
        )
    return _claim(evidence, why, output, form)


def _why(evidence: Evidence, output: TensorSpec) -> str | None:
    """The reason to take it for an RT-DETR, or None."""
    meta, (_, rows, columns) = evidence.metadata, output.shape
    if meta.head is not None:
        return f"metadata head={meta.head}"
    if isinstance(columns, str):  # exported with dynamic=True; in other heads the rows are 4+classes
        is_other = not meta.names or not isinstance(rows, int) or rows == 4 + len(meta.names)
        return None if is_other or meta.version is None else f"metadata task=detect: {output.name} has {rows} queries"
    if columns == 6 and meta.end2end is False and meta.nms is False and meta.version is not None:
        return "metadata task=detect with neither end2end nor nms: six columns are an RT-DETR export's"
    if columns != 6 and columns == 4 + len(meta.names) and isinstance(rows, int) and rows != evidence.cells():
        return f"metadata task=detect: {output.name} has {rows} queries of 4+{len(meta.names)} columns, as RT-DETR has"
    return None


def _form(evidence: Evidence, output: TensorSpec) -> str | None:
    """The layout of scores; None if six columns are ambiguous."""
    chosen = keys.choice(evidence.settings, "decode.scores", (_BEST, _EACH))
    if chosen is not None:
        return chosen
    meta = evidence.metadata
    columns = output.shape[2]
    if isinstance(columns, int) and columns != 6:
        return _EACH
    names = keys.words(evidence.settings, "names") or meta.names
    if meta.head is not None or (columns == 6 and names and len(names) != 2):
        return _BEST
    if meta.version is not None:
        return _BEST if meta.version >= _SIX_COLUMNS else _EACH
    return None


def _table(evidence: Evidence) -> TensorSpec | None:
    output = evidence.only_output
    if output is None or len(output.shape) != 3:
        return None
    columns = output.shape[2]
    return output if isinstance(columns, str) or columns >= 5 else None


def _claim(evidence: Evidence, reason: str, output: TensorSpec, form: str) -> Claim:
    columns = output.shape[2]
    each = columns - 4 if isinstance(columns, int) else None
    classes = each if form == _EACH and each else len(evidence.metadata.names) or None
    return Claim(NAME, reason, "", classes, Reading((output.name,), form, is_list=True))


SPEC = FamilySpec(by_setting, feed, UltralyticsRtDetr)
