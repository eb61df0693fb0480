"""Models of the ultralytics package: detect, pose and obb (segment: `ultralytics_segment`, classify: `classification`,
RT-DETR: `detr`)."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from edged.tensors import Array, Dim, TensorSpec
from edged.vision import settings as keys
from edged.vision.comparison import nearest_form
from edged.vision.detections import Detections
from edged.vision.families.contract import (
    Claim,
    Evidence,
    Family,
    Reading,
    count_classes,
    not_decoded,
    undecided,
)
from edged.vision.families.decoding import (
    ANY,
    Candidates,
    Floats,
    Outputs,
    Rows,
    Thresholds,
    picture_tensor,
    select_candidates,
    select_cells,
    suppress,
    to_detections,
    to_picture,
    with_area,
)
from edged.vision.nms import best_first, corners_of, hull_of, nms
from edged.vision.placement import Placement
from edged.vision.signatures import needs, patterns

# Three scales are usual; -p6, -p2 and the tiny v3 heads differ.
_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))


class Ultralytics(Family, frozen=True):
    """Detectors with one-to-many heads: v5u, v8, 9, 11, 12, and v10 and 26 with `nms=None`.

    One output, [N, 4 + classes, A]: a column for each of the A grid cells at strides 8, 16, 32. A column has cx, cy, w,
    h in input pixels and one score per class, after the sigmoid. No objectness, no NMS. Source: `Detect.forward` of the
    ultralytics package and the metadata of its `Exporter`. YOLOv9's repository exports the same tensor, and for models
    with an auxiliary head two such tensors, of which the second is the main head's (`DualDDetect.forward`).
    """

    name = "ultralytics"
    signatures = patterns("[N, 4+classes, cells]", "[N, 4+classes, cells], [N, 4+classes, cells]")

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        table = picture_tensor(outputs, self.reading.outputs[0], index, self.reading.width(4), ANY)
        offered = select_cells(table, len(table) - 4, thresholds.score)
        return to_picture(suppress(offered, thresholds, needs_nms=True).found, placement)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        tables = [spec for spec in evidence.outputs if len(spec.shape) == 3]
        if len({spec.shape for spec in tables}) != 1:
            return None
        table = tables[-1]  # of two tables, the main head's
        rows = table.shape[1]
        if isinstance(rows, int) and rows < 5:
            return None
        return Claim(cls.name, reason, Reading((table.name,)), count_classes(rows, 4))

    @classmethod
    def by_metadata(cls, evidence: Evidence) -> Claim | None:
        """Claim a model by the exporter's metadata. Every key is optional, because old exporters write fewer keys."""
        meta = evidence.metadata
        if meta.task is None and not (meta.names and meta.stride):
            return None
        if meta.task not in (None, "detect"):
            return not_decoded(f"an Ultralytics {meta.task} export")
        if meta.head == "RTDETRDecoder" or meta.end2end or meta.nms:
            # The rules of end-to-end and RT-DETR exports ran before this rule, and did not match.
            what = "metadata of an end-to-end or RT-DETR export, but not the tensor of one"
            return undecided(what, cls.name, "ultralytics-end2end", "rtdetr-ultralytics")
        return cls._by_rows(evidence)

    @classmethod
    def _by_rows(cls, evidence: Evidence) -> Claim | None:
        """Match a detector: the rows must fit the number of class names, the columns must fit the input size."""
        output, names = _main_output(evidence), evidence.metadata.names
        if output is None or len(output.shape) != 3 or not names:
            return None
        _, rows, columns = output.shape
        if rows != 4 + len(names) and not (isinstance(rows, str) and evidence.metadata.task == "detect"):
            return None
        if not _is_cells(evidence, columns):
            return None
        who = "task=detect" if evidence.metadata.task else "names and stride"
        reason = f"metadata {who}: {output.name} has 4+{len(names)} rows, one column a grid cell"
        return Claim(cls.name, reason, Reading((output.name,)), len(names))

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Claim a table with exactly as many columns as the input has grid cells. If the rows can have several
        meanings, return an undecided claim."""
        output, cells = evidence.only_output, evidence.cells()
        if output is None or len(output.shape) != 3 or cells is None:
            return None
        _, rows, columns = output.shape
        if columns != cells or rows == cells or not isinstance(rows, int) or rows < 5:
            return None
        if rows == 4 + 1 + 17 * 3:
            either = "52 classes, or one class with 17 keypoints"
            return undecided(f"output {output.name} has 56 rows: {either}", cls.name, UltralyticsPose.name)
        names = evidence.metadata.names
        if names and len(names) != rows - 4:
            either = f"{rows - 4} classes, or classes and other values"
            what = f"output {output.name} has {rows} rows, but metadata has {len(names)} names: {either}"
            return undecided(what, cls.name)
        return cls.claim(evidence, f"number of rows: {output.name} is [4+{rows - 4} classes, {cells} grid cells]")


def _main_output(evidence: Evidence) -> TensorSpec | None:
    """Return the only output. If YOLOv9's repository also exported an auxiliary head, return the main head's output."""
    outputs = evidence.outputs
    if len(outputs) == 2 and outputs[0].shape == outputs[1].shape and evidence.metadata.task is None:
        return outputs[1]
    return evidence.only_output


def _is_cells(evidence: Evidence, columns: Dim) -> bool:
    """Whether columns can be grid cells. An open dimension is accepted, because the caller also checks the metadata."""
    return isinstance(columns, str) or any(columns == evidence.cells(strides) for strides in _STRIDES)


_WRITES_END2END = (8, 4, 8)  # the first version that always writes `end2end`


class UltralyticsEnd2End(Family, frozen=True):
    """Detectors that need no NMS: NMS-free heads (v10, 26) and exports with `nms=True`.

    One output, [N, K, 6]: xyxy in input pixels, score, class; best first, padded with zeros. Two other formats have the
    same shape, so the metadata must show this format: `end2end` (always present since 8.4.8) or `nms` in `args`. In an
    export before 8.4.8 without `end2end`, six columns mean this format, unless the model has two classes: an RT-DETR
    with two classes has six columns, too. With `dynamic=True` the number of columns is open.
    """

    name = "ultralytics-end2end"
    signatures = patterns("[N, R, 6]")

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        rows = picture_tensor(outputs, self.reading.outputs[0], index, ANY, 6)
        return to_detections(rows[:, :4], rows[:, 4], rows[:, 5], placement, thresholds, needs_nms=False)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str, *, is_declared: bool = False) -> Claim | None:
        """See `Opened.claim`. The number of columns may be open if the metadata declares this format."""
        output, meta = evidence.table(6), evidence.metadata
        if output is None or (output.shape[2] != 6 and not (is_declared and isinstance(output.shape[2], str))):
            return None
        # An NMS-free head sorts its predictions, and drops no prediction.
        reading = Reading((output.name,), is_list=True, is_suppressed=not meta.end2end)
        return Claim(cls.name, reason, reading, len(meta.names) or None)

    @classmethod
    def by_metadata(cls, evidence: Evidence) -> Claim | None:
        meta = evidence.metadata
        if meta.task != "detect" or meta.head == "RTDETRDecoder":
            return None
        if meta.end2end or meta.nms:
            how = (
                "end2end=True: an NMS-free export" if meta.end2end else "args.nms=True: an export with NMS in the graph"
            )
            return cls.claim(evidence, f"metadata task=detect and {how}", is_declared=True)
        is_silent = meta.end2end is None and "args" not in meta.unreadable
        if is_silent and meta.version and meta.version < _WRITES_END2END and meta.names and len(meta.names) != 2:
            version = ".".join(map(str, meta.version))
            what = f"metadata task=detect and version={version}: only its end-to-end exports have six columns"
            return cls.claim(evidence, what)
        return None


CELLS, ROWS = "cells", "rows"


class UltralyticsTask(Family, frozen=True):
    """Base of segment, pose and obb: a table with `more` values per detection (mask coefficients, keypoints, an angle).

    The table has one of two forms:

    - "cells", [N, 4 + classes + more, A], without NMS
    - "rows", [N, R, 6 + more], of an NMS-free head or with NMS in the graph: box, score, class and the `more` values,
      padded with rows of zeros

    The metadata shows the form. Without metadata, a table with exactly 6 + more columns has the form "rows". Source:
    `Detect.postprocess`, its subclasses and `NMSModel` of the ultralytics package.
    """

    task: ClassVar[str]

    @classmethod
    def by_metadata(cls, evidence: Evidence) -> Claim | None:
        if evidence.metadata.task != cls.task:
            return None
        reason = f"metadata task={cls.task}"
        form = nearest_form(cls.signatures, evidence.tensors)
        return cls.claim(evidence, reason) or Claim(None, f"{reason}, but the family needs {needs(form)}")

    @classmethod
    def _claim_table(
        cls, evidence: Evidence, reason: str, more: int, what: str, *dense: str, keypoints: tuple[int, int] = (0, 0)
    ) -> Claim | None:
        """Claim the only 3-D output if it has `more` values per detection; `dense` names the further outputs to
        decode."""
        tables = [spec for spec in evidence.outputs if len(spec.shape) == 3]
        if len(tables) != 1:
            return None
        meta, (_, lines, columns) = evidence.metadata, tables[0].shape
        classes = len(meta.names) or None
        is_rows = bool(meta.end2end or meta.nms or (meta.end2end is None and columns == 6 + more))
        if is_rows and isinstance(columns, int) and columns != 6 + more:
            return None
        if not is_rows and isinstance(lines, int):
            classes = lines - 4 - more
            if classes < 1 or len(meta.names) not in (0, classes):
                return None
        reading = Reading(
            (tables[0].name, *dense),
            ROWS if is_rows else CELLS,
            keypoints=keypoints,
            is_list=is_rows,
            is_suppressed=is_rows and not meta.end2end,
            dense=dense,
        )
        return Claim(cls.name, f"{reason}: {tables[0].name} holds {reading.form}{what}", reading, classes)

    @property
    def needs_nms(self) -> bool:
        return self.reading.form != ROWS

    def _table(self, outputs: Outputs, index: int, more: int) -> Array:
        sizes = (self.reading.width(4 + more), ANY) if self.needs_nms else (ANY, 6 + more)
        return picture_tensor(outputs, self.reading.outputs[0], index, *sizes)

    def _select(self, table: Array, more: int, score: float) -> tuple[Candidates, Array]:
        """Return the detections above a score, and the `more` other values of each, [n, more], as in the table."""
        if not self.needs_nms:
            offered = select_candidates(table[:, :4], table[:, 4], table[:, 5], score)
            return offered, table[offered.rows, 6:]
        classes = len(table) - 4 - more
        offered = select_cells(table, classes, score)
        return offered, table[4 + classes :, offered.rows].T


class UltralyticsPose(UltralyticsTask, frozen=True):
    """Detections with k keypoints: x, y in input pixels and, if `kpt_shape` is [k, 3], a score after the sigmoid.

    `reading.keypoints` is (k, number of values per keypoint). Source: `Pose.kpts_decode` of the ultralytics package. As
    in this package, keypoints outside the picture are moved to its edge.
    """

    name = "ultralytics-pose"
    signatures = patterns("[N, 5+values, cells]", "[N, R, 6+values]")
    task = "pose"

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. The detections have keypoints. A keypoint has score 1 if the model gives no scores."""
        k, values = self.reading.keypoints
        offered, points = self._select(self._table(outputs, index, k * values), k * values, thresholds.score)
        whole = np.flatnonzero(np.isfinite(points).all(axis=1))
        keypoints = _keypoints(points[whole].astype(np.float32).reshape(-1, k, values), placement)
        found = msgspec.structs.replace(offered.found.select(whole), keypoints=keypoints)
        kept = suppress(Candidates(found, whole), thresholds, needs_nms=self.needs_nms)
        return to_picture(kept.found, placement)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        """See `Opened.claim`. Without `kpt_shape`, all values except box and classes are keypoints. Then the number of
        classes is the number of names, or 1 if there are no names."""
        k, values = evidence.metadata.kpt_shape or _values_left(evidence)
        if values not in (2, 3):
            return None
        what = f" with {k} keypoints of {values} values"
        return cls._claim_table(evidence, reason, k * values, what, keypoints=(k, values))

    @classmethod
    def by_metadata(cls, evidence: Evidence) -> Claim | None:
        if evidence.metadata.task == cls.task and evidence.metadata.kpt_shape is None:
            return undecided("metadata task=pose without kpt_shape", cls.name)
        return super().by_metadata(evidence)


def _keypoints(points: Floats, placement: Placement) -> Floats:
    """Convert keypoints from input pixels to pixels of the original picture: x, y and score, float32 [n, k, 3]."""
    x1, y1, x2, y2 = placement.edges
    original = placement.points_to_original(points[..., :2])
    found = np.ones((*points.shape[:2], 3), np.float32)
    np.clip(original, np.array((x1, y1), np.float32), np.array((x2, y2), np.float32), out=found[..., :2])
    if points.shape[2] == 3:
        np.clip(points[..., 2], 0, 1, out=found[..., 2])
    return found


def _values_left(evidence: Evidence) -> tuple[int, int]:
    """Return the number of keypoints and the number of values per keypoint, if all values besides box and classes are
    keypoints. A keypoint has three values if possible, otherwise two. Return 0 keypoints if neither number fits."""
    tables = [spec for spec in evidence.outputs if len(spec.shape) == 3]
    if len(tables) != 1:
        return 0, 0
    _, lines, columns = tables[0].shape
    names = keys.words(evidence.settings, "names") or evidence.metadata.names
    # A table always has more cells than values per cell, and more rows than values per row.
    is_rows = isinstance(lines, int) and isinstance(columns, int) and columns < lines
    whole, besides = (columns, 6) if is_rows else (lines, 4 + max(1, len(names)))
    rest = whole - besides if isinstance(whole, int) else 0
    return next(((rest // values, values) for values in (3, 2) if rest > 0 and rest % values == 0), (0, 0))


class UltralyticsObb(UltralyticsTask, frozen=True):
    """Oriented boxes: an angle in radians for each detection, clockwise.

    Boxes are cx, cy, w, h in both forms; segment and pose have xyxy in the form "rows" instead. Source:
    `OBB.decode_bboxes` and `NMSModel` of the ultralytics package. As in this package, the NMS compares boxes by their
    probabilistic IoU, and suppressed boxes also suppress other boxes.
    """

    name = "ultralytics-obb"
    signatures = patterns("[N, 5+classes, cells]", "[N, R, 7]")
    task = "obb"

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. The detections have corners. Boxes are the axis-aligned bounding boxes of the corners,
        cut to the picture."""
        table = self._table(outputs, index, 1)
        offered, angles = self._select(table, 1, thresholds.score)
        sizes = table[:4, offered.rows].T if self.needs_nms else table[offered.rows, :4]
        oriented = np.concatenate((sizes, angles), axis=1, dtype=np.float32)
        whole = np.flatnonzero(np.isfinite(oriented).all(axis=1) & (oriented[:, 2:4] > 0).all(axis=1))
        found, oriented = offered.found.select(whole), oriented[whole]
        kept = self._kept(found, oriented, thresholds)
        corners = placement.points_to_original(corners_of(oriented[kept]))
        x1, y1, x2, y2 = placement.edges
        boxes = np.clip(hull_of(corners), np.array((x1, y1) * 2), np.array((x2, y2) * 2), dtype=np.float32)
        return msgspec.structs.replace(found.select(kept), boxes=boxes, corners=corners).select(with_area(boxes))

    def _kept(self, found: Detections, oriented: Floats, thresholds: Thresholds) -> Rows:
        most, agnostic = thresholds.max_detections, thresholds.class_agnostic
        if self.needs_nms or agnostic:
            return nms(oriented, found.scores, found.class_ids, thresholds.iou, most, agnostic)
        return best_first(found.scores, most)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        return cls._claim_table(evidence, reason, 1, " with an angle")
