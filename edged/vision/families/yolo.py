"""YOLO models that packages other than ultralytics export: YOLOv5, YOLOv7, YOLOX, DeepStream-Yolo and YOLO-NAS."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.errors import ConfigError
from edged.tensors import Array, TensorSpec
from edged.vision import settings as keys
from edged.vision.detections import Detections
from edged.vision.families.contract import (
    Claim,
    Evidence,
    Family,
    Feed,
    Reading,
    count_classes,
    may_be,
    not_decoded,
    suppressed_list,
    undecided,
)
from edged.vision.families.decoding import (
    ANY,
    AT_LEAST_ONE,
    Floats,
    Outputs,
    Rows,
    Thresholds,
    best_class,
    checked_tensor,
    corners,
    counted_rows,
    logit,
    picture_tensor,
    rows_of_picture,
    sigmoid,
    to_detections,
)
from edged.vision.families.grids import count_cells, locate
from edged.vision.placement import Fit, Placement
from edged.vision.signatures import pattern, patterns

_FEWEST = 6  # columns: a box, objectness, a class
STRIDES = ((8, 16, 32), (8, 16, 32, 64))
_GRID_STRIDES = (4, 8, 16, 32, 64)
END_TO_END = pattern("num_dets [N, 1], det_boxes [N, K, 4], det_scores [N, K], det_classes [N, K]")
_RAW_HEADS = ", ".join(f"[N, 3, H/{stride}, W/{stride}, 5+classes]" for stride in STRIDES[0])


def _certain(table: Array, thresholds: Thresholds) -> tuple[Rows, Floats]:
    """Return the indices and float32 values of the rows whose objectness is above the threshold. No score in a row can
    be above the row's objectness."""
    rows = np.flatnonzero(np.greater(table[:, 4], thresholds.score))
    return rows, table[rows].astype(np.float32)


def _rated(centred: Floats, table: Floats, placement: Placement, thresholds: Thresholds) -> Detections:
    """Return detections from boxes cx, cy, w, h [n, 4]; a score is the objectness times the best class score."""
    with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are dropped later
        scores, class_ids = best_class(table[:, 5:] * table[:, 4:5])
    return to_detections(corners(centred), scores, class_ids, placement, thresholds, needs_nms=True)


class YoloV5(Family, frozen=True):
    """Exports of the YOLOv5 repository, and of the YOLOv7 repository with `--grid`, which have the same output.

    One output, [N, 3A, 5 + classes]: three anchors for each of the A grid cells, with cx, cy, w, h in input pixels,
    objectness and one score per class, all after the sigmoid; without NMS. Source: `Detect.forward` of both
    repositories. Old exports also have the three raw heads as outputs.
    """

    name = "yolov5"
    signatures = patterns(
        "[N, 3*cells, 5+classes]", "[N, 3*cells64, 5+classes]", f"[N, 3*cells, 5+classes], {_RAW_HEADS}"
    )

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. A row gives at most one detection, with its best class."""
        rows = picture_tensor(outputs, self.reading.outputs[0], index, AT_LEAST_ONE, self.reading.width(5))
        table = _certain(rows, thresholds)[1]
        return _rated(table[:, :4], table, placement, thresholds)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        """See `Opened.claim`. The model may have raw heads besides the table."""
        tables = [spec for spec in evidence.outputs if len(spec.shape) == 3]
        if len(tables) != 1 or any(len(spec.shape) not in (3, 5) for spec in evidence.outputs):
            return None
        columns = tables[0].shape[2]
        if isinstance(columns, int) and columns < _FEWEST:
            return None
        return Claim(cls.name, reason, Reading((tables[0].name,)), count_classes(columns, 5))

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Claim a table with three rows for each of the input's grid cells. A table with an open number of rows is
        claimed only if the metadata has a stride and as many names as the table has classes."""
        claim, meta = cls.claim(evidence, ""), evidence.metadata
        if claim is None or claim.classes is None or meta.task is not None:
            return None
        table, names = claim.reading.outputs[0], meta.names
        rows = next(spec.shape[1] for spec in evidence.outputs if spec.name == table)
        is_named = claim.classes == len(names)
        cells = [evidence.cells(strides) for strides in STRIDES]
        if any(count is not None and rows == 3 * count for count in cells) and (is_named or not names):
            if claim.classes == 1 and not names and evidence.picture.name != "images":
                return undecided(f"{table} has three rows a grid cell and six columns", cls.name, DeepStreamYolo.name)
            who = f"metadata names {len(names)} classes" if names else "number of rows"
            return cls.claim(evidence, f"{who}: {table} has three rows a grid cell, as YOLOv5 and YOLOv7 have")
        if is_named and meta.stride and isinstance(rows, str):
            return cls.claim(evidence, f"metadata names {len(names)} classes: {table} has as many columns and 5 more")
        return None


_GRID, _END2END, _FLAT, _HEADS = "grid", "end2end", "max-wh", "heads"


class YoloV7(YoloV5, frozen=True):
    """Exports of the YOLOv7 repository. `YoloV5` recognises exports with only `--grid`. The others are:

    - `--grid --end2end`: `num_dets` [N, 1], `det_boxes` [N, K, 4] xyxy in input pixels, `det_scores` and `det_classes`
      [N, K]; NMS is in the graph.
    - `--grid --end2end --max-wh`: one `output` [M, 7], a row per detection: picture, xyxy, *class, score*.
    - without `--grid`: three raw heads [N, 3, rows, columns, 5 + classes], before the sigmoid. The anchors are not in
      the file, so the setting `decode.anchors` must give them. YOLOv5's raw heads are the same.

    Source: `IDetect` and `End2End` of its `models`.
    """

    name = "yolov7"
    counted: ClassVar[tuple[str, ...]] = ("num_dets", "det_boxes", "det_scores", "det_classes")
    signatures = (END_TO_END, *patterns("[M, 7]", "[N, 3*cells, 5+classes]", _RAW_HEADS))

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        if self.reading.form == _END2END:
            boxes, scores, class_ids = counted_rows(outputs, self.reading.outputs, index)
            return to_detections(boxes, scores, class_ids, placement, thresholds, needs_nms=False)
        if self.reading.form == _FLAT:
            rows = rows_of_picture(checked_tensor(outputs, self.reading.outputs[0], ANY, 7), index)
            return to_detections(rows[:, 1:5], rows[:, 6], rows[:, 5], placement, thresholds, needs_nms=False)
        if self.reading.form == _GRID:
            return super().decode(outputs, index, placement, thresholds)
        sizes = AT_LEAST_ONE, AT_LEAST_ONE, AT_LEAST_ONE, self.reading.width(5)
        heads = [picture_tensor(outputs, name, index, *sizes) for name in self.reading.outputs]
        heads.sort(key=lambda head: -head.shape[1])  # the file may leave the grid sizes open
        parts = [self._head(*each, thresholds.score) for each in zip(heads, self.reading.anchors, strict=True)]
        table = np.concatenate(parts)
        return _rated(table[:, :4], table, placement, thresholds)

    def _head(self, head: Array, anchors: tuple[float, ...], score: float) -> Floats:
        """Decode the candidates of one raw head [anchors, rows, columns, 5 + classes]. Return rows as in an export with
        `--grid`."""
        anchor, row, column = np.nonzero(np.greater(head[..., 4], logit(score)))
        raw = sigmoid(head[anchor, row, column].astype(np.float32))
        down, across = self.preprocess.height / head.shape[1], self.preprocess.width / head.shape[2]
        cells = np.stack((column, row), axis=1, dtype=np.float32)
        sizes = np.array(anchors, np.float32).reshape(-1, 2)[anchor]
        raw[:, :2] = (raw[:, :2] * 2 - 0.5 + cells) * np.array((across, down), np.float32)
        raw[:, 2:4] = (raw[:, 2:4] * 2) ** 2 * sizes
        return raw

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        if set(evidence.output_names) >= set(cls.counted):
            return Claim(cls.name, reason, suppressed_list(cls.counted, _END2END))
        if evidence.flat_list is not None:
            return Claim(cls.name, reason, suppressed_list(evidence.output_names, _FLAT))
        heads = _raw_heads(evidence)
        if heads:
            return cls._claim_heads(evidence, reason, heads)
        table = evidence.table(_FEWEST)
        if table is None:
            return None
        return Claim(cls.name, reason, Reading((table.name,), _GRID), count_classes(table.shape[2], 5))

    @classmethod
    def _claim_heads(cls, evidence: Evidence, reason: str, heads: list[TensorSpec]) -> Claim:
        anchors = keys.rows(evidence.settings, "decode.anchors")
        if anchors is None:
            example = '"12,16,19,36,40,28; 36,75,76,55,72,146; 142,110,192,243,459,401"'
            anchors_of = f"widths and heights in pixels, finest grid first, such as {example}"
            missing = "the anchors of its raw heads are not in the file"
            return Claim(None, f"{reason}; {missing}: set decode.anchors ({anchors_of}) or family=raw")
        wanted = [spec.shape[1] for spec in heads]
        given = [len(row) / 2 for row in anchors]
        if len(given) != len(wanted) or any(isinstance(w, int) and w != g for w, g in zip(wanted, given, strict=True)):
            raise ConfigError(
                f"setting decode.anchors has {', '.join(f'{g:g}' for g in given)} anchors, but the model's heads have"
                f" {', '.join(map(str, wanted))}; separate the heads by semicolons, finest grid first"
            )
        reading = Reading(tuple(spec.name for spec in heads), _HEADS, anchors)
        return Claim(cls.name, reason, reading, count_classes(heads[0].shape[4], 5))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim a model by the exporter's output names. An output [M, 7] is claimed only if no property of the model
        suggests YOLO-NAS or seven classes."""
        if set(evidence.output_names) == set(cls.counted):
            return cls.claim(evidence, f"names of an end-to-end YOLOv7 export ({', '.join(cls.counted)})")
        if evidence.flat_list is None or evidence.flat_list.name != "output" or evidence.may_be_classes:
            return None
        if evidence.picture.name != "images" or evidence.picture.datatype == "UINT8":
            return None
        return cls.claim(evidence, "tensors images and output [N, 7], as in YOLOv7 exports with --max-wh")

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Claim raw heads: two or more outputs [N, anchors, rows, columns, values] whose rows and columns are those of
        grids."""
        return cls.claim(evidence, "raw heads of a YOLOv5 or YOLOv7 export") if _raw_heads(evidence) else None


def _raw_heads(evidence: Evidence) -> list[TensorSpec]:
    """Return the raw heads, the largest grid first; empty if the outputs are not raw heads."""
    heads = list(evidence.outputs)
    if len(heads) < 2 or any(len(spec.shape) != 5 or not _is_on_grid(spec, evidence) for spec in heads):
        return []
    if all(isinstance(spec.shape[2], int) for spec in heads):
        heads.sort(key=lambda spec: -int(spec.shape[2]))
    return heads


def _is_on_grid(head: TensorSpec, evidence: Evidence) -> bool:
    """Whether rows and columns of a head [N, anchors, rows, columns, values] can be those of a grid on the input. In a
    conversion from TensorFlow, these dimensions have another meaning."""
    if evidence.size is None:
        return True
    width, height = evidence.size
    sizes = ((-(-height // stride), -(-width // stride)) for stride in _GRID_STRIDES)
    return any(may_be(head.shape, None, None, rows, columns, None) for rows, columns in sizes)


_IN_CELLS, _IN_PIXELS = "grid", "pixels"


class YoloX(Family, frozen=True):
    """YOLOX exports.

    One output, [N, A, 5 + classes]: one row for each of the A grid cells at strides 8, 16, 32. A row has a box, and,
    after the sigmoid, objectness and one score per class. No NMS. By default the box is in units of its cell: centre =
    (xy + cell) * stride, size = exp(wh) * stride. With `--decode_in_inference` the box is cx, cy, w, h in input pixels.
    An Exp in the graph shows this second form. The setting `decode.boxes` (`grid` or `pixels`) overrides this. Source:
    `YOLOXHead` and `tools/export_onnx.py` of its repository.
    """

    name = "yolox"
    signatures = patterns("output? [N, cells, 5+classes]")
    feed: ClassVar[Feed] = {"color": "bgr", "fit": Fit.TOP_LEFT, "scale": 1.0}

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. A row gives at most one detection, with its best class."""
        is_grid = self.reading.form == _IN_CELLS
        cells = count_cells(self.size, STRIDES[0]) if is_grid else AT_LEAST_ONE
        answer = picture_tensor(outputs, self.reading.outputs[0], index, cells, self.reading.width(5))
        rows, table = _certain(answer, thresholds)
        boxes = self._to_pixels(rows, table[:, :4]) if is_grid else table[:, :4]
        return _rated(boxes, table, placement, thresholds)

    def _to_pixels(self, rows: Rows, boxes: Floats) -> Floats:
        """Convert boxes in units of their cells to cx, cy, w, h in input pixels."""
        cells, strides = locate(rows, self.size, STRIDES[0])
        with np.errstate(over="ignore", invalid="ignore"):  # infinite sizes are dropped later
            sizes = np.exp(boxes[:, 2:]) * strides
        return np.concatenate(((boxes[:, :2] + cells) * strides, sizes), axis=1, dtype=np.float32)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output, cells = evidence.table(_FEWEST), evidence.cells()
        if output is None:
            return None
        form = keys.choice(evidence.settings, "decode.boxes", (_IN_CELLS, _IN_PIXELS))
        if form is None and evidence.operators is not None:
            form = _IN_PIXELS if "Exp" in evidence.operators else _IN_CELLS
        if form is None:
            formats = "set decode.boxes=grid, decode.boxes=pixels or family=raw"
            return Claim(None, f"{reason}, but the box format is unknown: {formats}")
        _, rows, columns = output.shape
        if form == _IN_CELLS and cells is not None and isinstance(rows, int) and rows != cells:
            needs = f"needs {cells} rows for this input, but output {output.name} has {rows}"
            return Claim(None, f"{reason} {needs}; set decode.boxes=pixels or family=raw")
        what = "boxes to be decoded" if form == _IN_CELLS else "decoded boxes"
        return Claim(cls.name, f"{reason} with {what}", Reading((output.name,), form), count_classes(columns, 5))

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Claim a table with one row per grid cell. YOLOv6 also has this shape, as does DeepStream-Yolo if the table
        has six columns; the names of tensors distinguish these formats."""
        output, cells = evidence.table(_FEWEST), evidence.cells()
        if output is None or cells is None or output.shape[1] != cells:
            return None
        columns = output.shape[2]
        if not isinstance(columns, int) or columns == cells:
            return None
        what, names = f"{output.name} has one row per grid cell", evidence.metadata.names
        if names and columns == 4 + len(names):
            return not_decoded(f"{what} and 4+{len(names)} columns: an ultralytics table, transposed")
        if output.name != "output" or (columns == 6 and evidence.picture.name != "images"):
            six = (DeepStreamYolo.name,) if columns == 6 else ()
            counts = f"{columns - 5} classes; with {columns - 4} classes it is a transposed ultralytics table"
            return undecided(f"{what}, as exports of YOLOX and others with {counts}", cls.name, "yolov6", *six)
        return cls.claim(evidence, f"number of rows: {what}, as in a YOLOX export")


_QUERIES = 1000  # a model with more rows is not an end-to-end export


class DeepStreamYolo(Family, frozen=True):
    """YOLO models exported by the scripts of DeepStream-Yolo: `input` -> `output` [N, rows, 6].

    Each row is one prediction: xyxy in input pixels, score and label. Rows are unordered and without NMS, unlike those
    of end-to-end exports, which have the same six columns. DeepStream has the preprocessing in its own configuration
    file, which edged does not read. By default pictures are letterboxed RGB in 0..1.
    """

    name = "deepstream-yolo"
    signatures = patterns("output? [N, rows, 6]")

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        rows = picture_tensor(outputs, self.reading.outputs[0], index, AT_LEAST_ONE, 6)
        return to_detections(rows[:, :4], rows[:, 4], rows[:, 5], placement, thresholds, needs_nms=True)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output = evidence.table(6)
        if output is None or output.shape[2] != 6:
            return None
        # `is_list`, because rows must not be compared: the label of a cell without an object depends on rounding.
        return Claim(cls.name, reason, Reading((output.name,), is_list=True))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim a model if its tensors have the names that the scripts give, and the number of rows is the number of
        grid cells, three times this number, or any number above 1000."""
        output, cells = evidence.table(6), evidence.cells()
        if output is None or output.name != "output" or evidence.picture.name != "input":
            return None
        rows = output.shape[1]
        if not isinstance(rows, int) or (rows <= _QUERIES and (cells is None or rows not in (cells, 3 * cells))):
            return None
        return cls.claim(evidence, "tensors input and output [N, rows, 6] of a DeepStream-Yolo export")


class YoloNas(Family, frozen=True):
    """YOLO-NAS as super-gradients exports it, with NMS and its own thresholds in the graph.

    Flat form: one output [M, 7], a row per detection: picture, xyxy in input pixels, *score, class*. Batch form:
    `num_predictions` [N, 1], `pred_boxes` [N, K, 4], `pred_scores` and `pred_classes` [N, K], padded with -1. The input
    is UINT8, and the graph divides by 255. The long side of a picture gets 636 of 640 pixels. Source:
    `ExportableObjectDetectionModel` and the processing of the pretrained models.
    """

    name = "yolo-nas"
    counted: ClassVar[tuple[str, ...]] = ("num_predictions", "pred_boxes", "pred_scores", "pred_classes")
    signatures = patterns(
        "graph2_flat_predictions? [M, 7]",
        "num_predictions [N, 1], pred_boxes [N, K, 4], pred_scores [N, K], pred_classes [N, K]",
    )
    feed: ClassVar[Feed] = {"fit": Fit.LETTERBOX, "zoom": 636 / 640}

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        if self.reading.form == "batch":
            boxes, scores, class_ids = counted_rows(outputs, self.reading.outputs, index)
        else:
            rows = rows_of_picture(checked_tensor(outputs, self.reading.outputs[0], ANY, 7), index)
            boxes, scores, class_ids = rows[:, 1:5], rows[:, 5], rows[:, 6]
        return to_detections(boxes, scores, class_ids, placement, thresholds, needs_nms=False)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        if set(evidence.output_names) >= set(cls.counted):
            return Claim(cls.name, reason, suppressed_list(cls.counted, "batch"))
        if evidence.flat_list is None:
            return None
        return Claim(cls.name, reason, suppressed_list(evidence.output_names, "flat"))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim a model by the exporter's output names. An output [M, 7] with another name is claimed if the input is
        UINT8 and the output cannot be seven classes."""
        if set(evidence.output_names) == set(cls.counted):
            return cls.claim(evidence, f"names of a YOLO-NAS export ({', '.join(cls.counted)})")
        flat = evidence.flat_list
        if flat is not None and flat.name.endswith("flat_predictions"):
            return cls.claim(evidence, f"name of a flat YOLO-NAS export ({flat.name})")
        if flat is not None and evidence.picture.datatype == "UINT8" and not evidence.may_be_classes:
            return cls.claim(evidence, f"{flat.name} [N, 7] of a UINT8 input, as flat YOLO-NAS exports have")
        return None
