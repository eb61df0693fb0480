"""The YOLOv7 repository's exports, in the forms that are its own (with `--grid` it is one of `yolov5`'s):

- `--grid --end2end`: `num_dets` [N, 1], `det_boxes` [N, K, 4] xyxy in input pixels, `det_scores` and `det_classes`
  [N, K]; NMS is in the graph.
- the same with `--max-wh`: one `output` [M, 7], a row per detection: picture, xyxy, *class, score*.
- without `--grid`: three raw heads [N, 3, rows, columns, 5 + classes], before the sigmoid, whose anchors are not in the
  file but in the setting `decode.anchors`. YOLOv5's raw heads are the same.

Source: `IDetect` and `End2End` of its `models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from edged.errors import ConfigError
from edged.tensors import Array, TensorSpec
from edged.vision import settings as keys
from edged.vision.detections import Detections
from edged.vision.families import ultralytics, yolov5
from edged.vision.families.candidates import Floats, corners, logit, sigmoid, to_detections
from edged.vision.families.contract import (
    Claim,
    Decoder,
    Evidence,
    FamilySpec,
    Reading,
    Thresholds,
    require,
    rows_of_picture,
)
from edged.vision.families.outputs import ANY, AT_LEAST_ONE, checked_tensor, counted, picture_tensor
from edged.vision.placement import Placement

NAME = "yolov7"
COUNTED = ("num_dets", "det_boxes", "det_scores", "det_classes")

_GRID, _END2END, _FLAT, _HEADS = "grid", "end2end", "max-wh", "heads"


class YoloV7(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`."""
        if self.reading.form == _END2END:
            boxes, scores, class_ids = counted(outputs, self.reading.outputs, index)
            return to_detections(boxes, scores, class_ids, placement, thresholds, needs_nms=False)
        if self.reading.form == _FLAT:
            rows = rows_of_picture(checked_tensor(outputs, self.reading.outputs[0], ANY, 7), index)
            return to_detections(rows[:, 1:5], rows[:, 6], rows[:, 5], placement, thresholds, needs_nms=False)
        if self.reading.form == _HEADS:
            sizes = AT_LEAST_ONE, AT_LEAST_ONE, AT_LEAST_ONE, self.reading.width(5)
            heads = [picture_tensor(outputs, name, index, *sizes) for name in self.reading.outputs]
            heads.sort(key=lambda head: -head.shape[1])  # the file may leave the grid sizes open
            parts = [self._head(*each, thresholds.score) for each in zip(heads, self.reading.anchors, strict=True)]
            table = np.concatenate(parts)
        else:
            rows = picture_tensor(outputs, self.reading.outputs[0], index, AT_LEAST_ONE, self.reading.width(5))
            table = yolov5.certain(rows, thresholds)[1]
        scores, class_ids = yolov5.rated(table)
        return to_detections(corners(table[:, :4]), scores, class_ids, placement, thresholds, needs_nms=True)

    def _head(self, head: Array, anchors: tuple[float, ...], score: float) -> Floats:
        """Decode candidates of one raw head [anchors, rows, columns, 5 + classes] to rows as with `--grid`."""
        anchor, row, column = np.nonzero(np.greater(head[..., 4], logit(score)))
        raw = sigmoid(_finite(head[anchor, row, column].astype(np.float32)))
        down, across = self.preprocess.height / head.shape[1], self.preprocess.width / head.shape[2]
        cells = np.stack((column, row), axis=1, dtype=np.float32)
        sizes = np.array(anchors, np.float32).reshape(-1, 2)[anchor]
        raw[:, :2] = (raw[:, :2] * 2 - 0.5 + cells) * np.array((across, down), np.float32)
        raw[:, 2:4] = (raw[:, 2:4] * 2) ** 2 * sizes
        return raw


def _finite(logits: Floats) -> Floats:
    """Replace infinity by NaN, since its sigmoid would be a valid score."""
    return np.where(np.isfinite(logits), logits, np.float32(np.nan))


def by_setting(evidence: Evidence) -> Claim:
    reason = f"the setting family={NAME}"
    if set(evidence.output_names) >= set(COUNTED):
        return _end2end(reason)
    flat = evidence.flat_list
    if flat is not None:
        return _flat(reason, flat)
    heads = _heads(evidence)
    if heads:
        return _raw(evidence, reason, heads)
    needs = f"outputs {', '.join(COUNTED)}, one [N, 7], one [N, rows, 5+classes] or three raw heads"
    require(evidence, NAME, needs, len(evidence.outputs) == 1 and len(evidence.outputs[0].shape) == 3)
    table = yolov5.by_setting(evidence)
    return Claim(NAME, reason, "", table.classes, Reading((table.output,), _GRID))


def by_names(evidence: Evidence) -> Claim | None:
    """Outputs named as by its exporter; a flat one only if nothing suggests YOLO-NAS."""
    if evidence.picture is None:
        return None
    if set(evidence.output_names) == set(COUNTED):
        return _end2end(f"names of an end-to-end YOLOv7 export ({', '.join(COUNTED)})")
    flat = evidence.flat_list
    if flat is None or flat.name != "output" or evidence.may_be_classes:
        return None
    if evidence.picture.name != "images" or evidence.picture.datatype == "UINT8":
        return None
    return _flat("images and output [N, 7], as YOLOv7 exports have them with --max-wh", flat)


def by_shape(evidence: Evidence) -> Claim | None:
    """Raw heads: three anchors for each cell of three grids."""
    heads = _heads(evidence)
    if not heads or evidence.picture is None:
        return None
    if "decode.anchors" not in evidence.settings:
        what = "three raw heads of a YOLOv5 or YOLOv7 export, whose anchors are not in the file"
        return Claim(None, f"{what}: set decode.anchors or family=raw")
    return _raw(evidence, "three raw heads and the setting decode.anchors", heads)


def _end2end(reason: str) -> Claim:
    return Claim(NAME, reason, reading=Reading(COUNTED, _END2END, is_list=True, is_suppressed=True))


def _flat(reason: str, output: TensorSpec) -> Claim:
    return Claim(NAME, reason, reading=Reading((output.name,), _FLAT, is_list=True, is_suppressed=True))


def _heads(evidence: Evidence) -> list[TensorSpec]:
    """The raw heads, the largest grid first; empty if the outputs are something else."""
    heads = [spec for spec in evidence.outputs if len(spec.shape) == 5]
    if len(heads) < 2 or len(heads) != len(evidence.outputs):
        return []
    grids = [spec.shape[2] for spec in heads]
    if all(isinstance(rows, int) for rows in grids):
        heads.sort(key=lambda spec: -int(spec.shape[2]))
    return heads


def _raw(evidence: Evidence, reason: str, heads: list[TensorSpec]) -> Claim:
    anchors = keys.rows(evidence.settings, "decode.anchors")
    if anchors is None:
        raise ConfigError(
            f"family={NAME} needs decode.anchors for raw heads: widths and heights in pixels, finest grid first,"
            ' such as "12,16,19,36,40,28; 36,75,76,55,72,146; 142,110,192,243,459,401"'
        )
    wanted = [spec.shape[1] for spec in heads]
    given = [len(row) / 2 for row in anchors]
    if len(given) != len(wanted) or any(isinstance(w, int) and w != g for w, g in zip(wanted, given, strict=True)):
        raise ConfigError(
            f"decode.anchors has {', '.join(f'{g:g}' for g in given)} anchors, the model's heads"
            f" {', '.join(map(str, wanted))}; separate the heads by semicolons, finest grid first"
        )
    columns = heads[0].shape[4]
    classes = columns - 5 if isinstance(columns, int) else None
    return Claim(NAME, reason, "", classes, Reading(tuple(spec.name for spec in heads), _HEADS, anchors))


SPEC = FamilySpec(by_setting, ultralytics.feed, YoloV7)
