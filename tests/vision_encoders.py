"""Encode planted objects in the output formats of the exporters.

Each encoder follows the description of its format in the simplest way and shares no code with the decoders. The input
is wider than high, so that a mix-up of the sides is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from edged.vision.placement import Placement

WIDTH, HEIGHT = 416, 256
STRIDES = (8, 16, 32)
CELLS = sum((WIDTH // s) * (HEIGHT // s) for s in STRIDES)
CELLS_64 = CELLS + -(-WIDTH // 64) * (HEIGHT // 64)  # with a fourth grid
MOST = 1200  # rows of list formats
CLASSES = 5
NAMES = {number: f"thing {number}" for number in range(CLASSES)}
ANCHORS = ((90, 110, 92, 112, 94, 114), (100, 120, 102, 122, 104, 124), (130, 110, 132, 112, 134, 114))

Outputs: TypeAlias = dict[str, npt.NDArray[np.generic]]
Floats: TypeAlias = npt.NDArray[np.float32]


class Planted(NamedTuple):
    """An object: xyxy in pixels of the picture, or of the input after `lay`."""

    box: tuple[float, float, float, float]
    class_id: int
    score: float

    @property
    def centred(self) -> tuple[float, float, float, float]:
        x1, y1, x2, y2 = self.box
        return (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1

    @property
    def relative(self) -> tuple[float, float, float, float]:
        """xyxy in 0..1 of the input."""
        x1, y1, x2, y2 = self.box
        return x1 / WIDTH, y1 / HEIGHT, x2 / WIDTH, y2 / HEIGHT

    def lay(self, placement: Placement) -> Planted:
        """Convert from pixels of the picture to pixels of the input."""
        x1, y1, x2, y2 = self.box
        sx, sy, px, py = placement.scale_x, placement.scale_y, placement.pad_x, placement.pad_y
        return self._replace(box=(x1 * sx + px, y1 * sy + py, x2 * sx + px, y2 * sy + py))


Batch: TypeAlias = Sequence[Sequence[Planted]]


def as_fp16(outputs: Outputs) -> Outputs:
    return {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in outputs.items()}


# -- tables with a prediction for every cell ------------------------------------------------------------------------


def columns(batch: Batch) -> Outputs:
    """[N, 4 + classes, A]: cx, cy, w, h in pixels, and a score per class."""
    table = np.zeros((len(batch), 4 + CLASSES, CELLS), np.float32)
    for number, picture in enumerate(batch):
        for cell, found in zip(_spread(CELLS), picture, strict=False):
            table[number, :4, cell] = found.centred
            table[number, 4 + found.class_id, cell] = found.score
    return {"output0": table}


def two_heads(batch: Batch) -> Outputs:
    """YOLOv9's auxiliary head first, with different objects, then the main head."""
    aside = [[Planted((0, 0, 50, 50), 0, 0.99)] for _ in batch]
    return {"output0": columns(aside)["output0"], "1770": columns(batch)["output0"]}


def anchor_rows(batch: Batch, rows: int = 3 * CELLS, classes: int = CLASSES, name: str = "output0") -> Outputs:
    """[N, rows, 5 + classes]: cx, cy, w, h in pixels, objectness, and per class a factor of it."""
    table = np.zeros((len(batch), rows, 5 + classes), np.float32)
    for number, picture in enumerate(batch):
        for row, found in zip(_spread(rows), picture, strict=False):
            objectness = (1 + found.score) / 2
            table[number, row, :5] = *found.centred, objectness
            table[number, row, 5 + found.class_id] = found.score / objectness
    return {name: table}


def grid_rows(batch: Batch) -> Outputs:
    """YOLOX: as `anchor_rows`, with one row per cell and boxes in units of their cells."""
    table = anchor_rows(batch, CELLS, name="output")["output"]
    row = 0
    for stride in STRIDES:
        for y in range(HEIGHT // stride):
            for x in range(WIDTH // stride):
                cx, cy, w, h = (table[:, row, column].copy() for column in range(4))
                table[:, row, 0], table[:, row, 1] = cx / stride - x, cy / stride - y
                table[:, row, 2], table[:, row, 3] = (
                    np.log(np.maximum(w, 1e-3) / stride),
                    np.log(np.maximum(h, 1e-3) / stride),
                )
                row += 1
    return {"output": table}


def raw_heads(batch: Batch) -> Outputs:
    """YOLOv5 and YOLOv7 before their last layer: logits, with boxes relative to their cell and anchor."""
    heads = [np.full((len(batch), 3, HEIGHT // s, WIDTH // s, 5 + CLASSES), -12, np.float32) for s in STRIDES]
    for number, picture in enumerate(batch):
        for index, found in enumerate(picture):
            places = ((level % 3, anchor) for level in range(index, index + 3) for anchor in range(3))
            level, anchor = next(place for place in places if _raw_cell(heads, number, *place, found)[4] == -12)
            stride, cell = STRIDES[level], _raw_cell(heads, number, level, anchor, found)
            cx, cy, w, h = found.centred
            across, down = ANCHORS[level][anchor * 2 : anchor * 2 + 2]
            objectness = (1 + found.score) / 2
            values = [(cx / stride % 1 + 0.5) / 2, (cy / stride % 1 + 0.5) / 2]
            values += [math.sqrt(w / across) / 2, math.sqrt(h / down) / 2, objectness]
            cell[:5] = [_logit(value) for value in values]
            cell[5 + found.class_id] = _logit(found.score / objectness)
    return {f"head{level}": head for level, head in enumerate(heads)}


def _raw_cell(heads: list[Floats], number: int, level: int, anchor: int, found: Planted) -> Floats:
    x, y, *_ = found.centred
    cell: Floats = heads[level][number, anchor, int(y / STRIDES[level]), int(x / STRIDES[level])]
    return cell


def deepstream(batch: Batch) -> Outputs:
    """[N, A, 6]: xyxy in pixels, score, label; background cells have low scores and any label."""
    table = np.zeros((len(batch), CELLS, 6), np.float32)
    table[:, :, 4], table[:, :, 5] = 0.001, 3
    for number, picture in enumerate(batch):
        for row, found in zip(_spread(CELLS), picture, strict=False):
            table[number, row] = *found.box, found.score, found.class_id
    return {"output": table}


def priors(batch: Batch, rows: int = CELLS) -> Outputs:
    """SSD: a softmax over background and classes for every prior, and the prior's box."""
    scores = np.zeros((len(batch), rows, 1 + CLASSES), np.float32)
    boxes = np.zeros((len(batch), rows, 4), np.float32)
    scores[:, :, 0] = 1
    for number, picture in enumerate(batch):
        for row, found in zip(_spread(rows), picture, strict=False):
            scores[number, row, 0], scores[number, row, found.class_id] = 1 - found.score, found.score
            boxes[number, row] = found.relative
    return {"scores": scores, "boxes": boxes}


def ultraface_priors() -> list[tuple[float, float, float, float]]:
    """UltraFace's prior boxes, in 0..1: cx, cy, w, h."""
    found = []
    for stride, sides in ((8, (10, 16, 24)), (16, (32, 48)), (32, (64, 96)), (64, (128, 192, 256))):
        across, down = math.ceil(WIDTH / stride), math.ceil(HEIGHT / stride)
        for y in range(down):
            for x in range(across):
                for side in sides:
                    w, h = min(side / WIDTH, 1.0), min(side / HEIGHT, 1.0)
                    found.append(((x + 0.5) / across, (y + 0.5) / down, w, h))
    return found


def prior_corners(batch: Batch) -> Outputs:
    """UltraFace with boxes in 0..1."""
    return priors(batch, len(ultraface_priors()))


def prior_offsets(batch: Batch) -> Outputs:
    """UltraFace without postprocessing: boxes relative to their priors."""
    outputs = prior_corners(batch)
    for picture in outputs["boxes"]:
        for row, (cx, cy, w, h) in enumerate(ultraface_priors()):
            x1, y1, x2, y2 = map(float, picture[row])
            if x2 > x1:
                centre = ((x1 + x2) / 2 - cx) / w / 0.1, ((y1 + y2) / 2 - cy) / h / 0.1
                picture[row] = *centre, math.log((x2 - x1) / w) / 0.2, math.log((y2 - y1) / h) / 0.2
    return outputs


def class_columns(
    boxes_of: str, scores_of: str, rows: int = CELLS, *, is_turned: bool = False
) -> Callable[[Batch], Outputs]:
    """xyxy in pixels [N, rows, 4] and a score for each class [N, rows, classes], or [N, classes, rows] if turned."""

    def encode(batch: Batch) -> Outputs:
        boxes = np.zeros((len(batch), rows, 4), np.float32)
        scores = np.zeros((len(batch), rows, CLASSES), np.float32)
        for number, picture in enumerate(batch):
            for row, found in zip(_spread(rows), picture, strict=False):
                boxes[number, row], scores[number, row, found.class_id] = found.box, found.score
        return {scores_of: scores.swapaxes(1, 2).copy() if is_turned else scores, boxes_of: boxes}

    return encode


def on_anchors(batch: Batch) -> Outputs:
    """EfficientDet in PyTorch: anchors yxyx in pixels, deltas relative to them, a score for each class."""
    anchors = np.zeros((1, CELLS, 4), np.float32)
    for row in range(CELLS):
        y, x = row % 7 * 32, row % 11 * 32
        anchors[0, row] = y, x, y + 96, x + 64 + row % 3 * 32
    deltas = np.zeros((len(batch), CELLS, 4), np.float32)
    scores = np.zeros((len(batch), CELLS, CLASSES), np.float32)
    for number, picture in enumerate(batch):
        for row, found in zip(_spread(CELLS), picture, strict=False):
            y1, x1, y2, x2 = anchors[0, row].tolist()
            cx, cy, w, h = found.centred
            offset = (cy - (y1 + y2) / 2) / (y2 - y1), (cx - (x1 + x2) / 2) / (x2 - x1)
            deltas[number, row] = *offset, math.log(h / (y2 - y1)), math.log(w / (x2 - x1))
            scores[number, row, found.class_id] = found.score
    return {"regression": deltas, "classification": scores, "anchors": anchors}


def distance_heads(batch: Batch) -> Outputs:
    """RTMDet before its last layer: logits of classes, distances in pixels from the corner of the cell."""
    grids = [(HEIGHT // s, WIDTH // s) for s in STRIDES]
    classes = [np.full((len(batch), CLASSES, *grid), -12, np.float32) for grid in grids]
    sides = [np.zeros((len(batch), 4, *grid), np.float32) for grid in grids]
    places = [(level, y, x) for level, (down, across) in enumerate(grids) for y in range(down) for x in range(across)]
    for number, picture in enumerate(batch):
        for row, found in zip(_spread(CELLS), picture, strict=False):
            level, y, x = places[row]
            left, top = x * STRIDES[level], y * STRIDES[level]
            x1, y1, x2, y2 = found.box
            classes[level][number, found.class_id, y, x] = _logit(found.score)
            sides[level][number, :, y, x] = left - x1, top - y1, x2 - left, y2 - top
    named = {f"classes{level}": head for level, head in enumerate(classes)}
    return {**named, **{f"sides{level}": head for level, head in enumerate(sides)}}


def joined_heads(batch: Batch) -> Outputs:
    """The same of MMYOLO: joined, distances in units of cells."""
    heads = distance_heads(batch)
    pairs = [(heads[f"classes{level}"], heads[f"sides{level}"] / stride) for level, stride in enumerate(STRIDES)]
    return {f"head{level}": np.concatenate(pair, axis=1, dtype=np.float32) for level, pair in enumerate(pairs)}


# -- lists of detections --------------------------------------------------------------------------------------------


def six(batch: Batch) -> Outputs:
    """Ultralytics end to end: xyxy in pixels, score, class; zeros after the last detection."""
    table = np.zeros((len(batch), MOST, 6), np.float32)
    for number, picture in enumerate(batch):
        for row, found in enumerate(_best_first(picture)):
            table[number, row] = *found.box, found.score, found.class_id
    return {"output0": table}


def queries(batch: Batch) -> Outputs:
    """Ultralytics' RT-DETR since 8.4.47: cx, cy, w, h in 0..1, score, class."""
    table = np.full((len(batch), MOST, 6), 0.001, np.float32)
    for number, picture in enumerate(batch):
        for row, found in enumerate(picture):
            table[number, row] = *_relative_centre(found), found.score, found.class_id
    return {"output0": table}


def query_classes(batch: Batch) -> Outputs:
    """Ultralytics' RT-DETR before 8.4.47: a score per class."""
    table = np.zeros((len(batch), MOST, 4 + CLASSES), np.float32)
    for number, picture in enumerate(batch):
        for row, found in enumerate(picture):
            table[number, row, :4] = _relative_centre(found)
            table[number, row, 4 + found.class_id] = found.score
    return {"output0": table}


def counted(names: Sequence[str], fill: float, kind: type) -> Callable[[Batch], Outputs]:
    """A count, boxes in pixels, scores and classes of type `kind`; unused rows have the value `fill`."""

    def encode(batch: Batch) -> Outputs:
        count = np.zeros((len(batch), 1), np.int32)
        boxes = np.full((len(batch), MOST, 4), fill, np.float32)
        scores = np.full((len(batch), MOST), fill, np.float32)
        class_ids = np.full((len(batch), MOST), fill, kind)
        for number, picture in enumerate(batch):
            count[number] = len(picture)
            for row, found in enumerate(_best_first(picture)):
                boxes[number, row], scores[number, row] = found.box, found.score
                class_ids[number, row] = found.class_id
        return dict(zip(names, (count, boxes, scores, class_ids), strict=True))

    return encode


def flat(name: str, class_first: bool) -> Callable[[Batch], Outputs]:
    """[M, 7]: index of the picture, xyxy in pixels, then class and score in either order."""

    def encode(batch: Batch) -> Outputs:
        rows = []
        for number, picture in enumerate(batch):
            for found in picture:
                last = (found.class_id, found.score) if class_first else (found.score, found.class_id)
                rows.append((number, *found.box, *last))
        return {name: np.array(rows, np.float32).reshape(-1, 7)}

    return encode


def labelled(batch: Batch) -> Outputs:
    """RT-DETR's own repositories: labels, boxes and scores; the graph has multiplied the boxes by the given sizes."""
    labels = np.zeros((len(batch), MOST), np.int64)
    boxes, scores = np.zeros((len(batch), MOST, 4), np.float32), np.full((len(batch), MOST), 0.001, np.float32)
    for number, picture in enumerate(batch):
        for row, found in enumerate(_best_first(picture)):
            labels[number, row], scores[number, row] = found.class_id, found.score
            boxes[number, row] = np.array(found.relative) * (WIDTH, HEIGHT, WIDTH, HEIGHT)
    return {"labels": labels, "boxes": boxes, "scores": scores}


def logits(slots: int, boxes_of: str = "dets", logits_of: str = "labels") -> Callable[[Batch], Outputs]:
    """RF-DETR: cx, cy, w, h in 0..1, and a logit for each slot."""

    def encode(batch: Batch) -> Outputs:
        boxes = np.full((len(batch), MOST, 4), 0.5, np.float32)
        labels = np.full((len(batch), MOST, slots), -12, np.float32)
        for number, picture in enumerate(batch):
            for row, found in enumerate(picture):
                boxes[number, row] = _relative_centre(found)
                labels[number, row, found.class_id] = _logit(found.score)
        return {boxes_of: boxes, logits_of: labels}

    return encode


def no_object(batch: Batch) -> Outputs:
    """DETR: cx, cy, w, h in 0..1, and logits of a softmax over the classes and, last, no object."""
    boxes = np.full((len(batch), MOST, 4), 0.5, np.float32)
    logits = np.full((len(batch), MOST, CLASSES + 1), -30, np.float32)
    logits[:, :, -1] = 0
    for number, picture in enumerate(batch):
        for row, found in enumerate(picture):
            boxes[number, row] = _relative_centre(found)
            logits[number, row, found.class_id] = math.log(found.score)
            logits[number, row, -1] = math.log(1 - found.score)
    return {"logits": logits, "pred_boxes": boxes}


def token_logits(batch: Batch) -> Outputs:
    """Grounding DINO: cx, cy, w, h in 0..1, and a logit for each token of "[CLS] a a . b b . ... [SEP]".

    The special tokens and full stops have high logits, which must not count.
    """
    boxes = np.full((len(batch), MOST, 4), 0.5, np.float32)
    logits = np.full((len(batch), MOST, 256), -np.inf, np.float32)
    logits[:, :, : 2 + 3 * CLASSES] = -12
    logits[:, :, [0, *range(3, 1 + 3 * CLASSES, 3), 1 + 3 * CLASSES]] = 5
    for number, picture in enumerate(batch):
        for row, found in enumerate(picture):
            boxes[number, row] = _relative_centre(found)
            logits[number, row, 1 + 3 * found.class_id + row % 2] = _logit(found.score)
            logits[number, row, 1 + 3 * found.class_id + (row + 1) % 2] = _logit(found.score / 2)
    return {"logits": logits, "pred_boxes": boxes}


def scored_boxes(batch: Batch) -> Outputs:
    """mmdeploy: xyxy in pixels and score, and labels; zeros after the last."""
    dets, labels = np.zeros((len(batch), MOST, 5), np.float32), np.zeros((len(batch), MOST), np.int64)
    for number, picture in enumerate(batch):
        for row, found in enumerate(_best_first(picture)):
            dets[number, row], labels[number, row] = (*found.box, found.score), found.class_id
    return {"dets": dets, "labels": labels}


def listed(rows_of: str, counts_of: str) -> Callable[[Batch], Outputs]:
    """PaddleDetection: class, score, xyxy in pixels of all pictures one after the other, and how many of each."""

    def encode(batch: Batch) -> Outputs:
        rows = [(found.class_id, found.score, *found.box) for picture in batch for found in picture]
        counts = np.array([len(picture) for picture in batch], np.int32)
        return {rows_of: np.array(rows, np.float32).reshape(-1, 6), counts_of: counts}

    return encode


def yxyx_rows(batch: Batch) -> Outputs:
    """google/automl: picture, yxyx in pixels, score, class."""
    table = np.zeros((len(batch), MOST, 7), np.float32)
    for number, picture in enumerate(batch):
        for row, found in enumerate(_best_first(picture)):
            x1, y1, x2, y2 = found.box
            table[number, row] = number, y1, x1, y2, x2, found.score, found.class_id
    return {"detections:0": table}


def rows_of_seven(batch: Batch) -> Outputs:
    """OpenVINO's DetectionOutput: picture, class, score, xyxy in 0..1; a picture of -1 ends the list."""
    rows = [(n, f.class_id, f.score, *f.relative) for n, picture in enumerate(batch) for f in picture]
    table = np.zeros((1, 1, MOST * len(batch), 7), np.float32)
    table[0, 0, : len(rows)] = np.array(rows, np.float32).reshape(-1, 7)
    table[0, 0, len(rows) :, 0] = -1
    table[0, 0, len(rows) :, 2] = 0.9  # garbage beyond the end
    return {"detection_out": table}


def tflite(batch: Batch) -> Outputs:
    """yxyx in 0..1, classes, scores, count, all as floats."""
    found = counted(("num_detections", "detection_boxes", "detection_scores", "detection_classes"), 0, np.float32)(
        batch
    )
    boxes = np.zeros((len(batch), MOST, 4), np.float32)
    for number, picture in enumerate(batch):
        for row, one in enumerate(_best_first(picture)):
            x1, y1, x2, y2 = one.relative
            boxes[number, row] = y1, x1, y2, x2
    return {**found, "detection_boxes": boxes, "num_detections": found["num_detections"].reshape(-1).astype(np.float32)}


def _spread(rows: int) -> list[int]:
    """Return all rows of a table in random order, beginning with the last and the first."""
    ordered = np.random.default_rng(0).permutation(np.arange(1, rows - 1)).tolist()
    return [rows - 1, 0, *ordered]


def _best_first(picture: Sequence[Planted]) -> list[Planted]:
    return sorted(picture, key=lambda found: -found.score)


def _relative_centre(found: Planted) -> tuple[float, float, float, float]:
    cx, cy, w, h = found.centred
    return cx / WIDTH, cy / HEIGHT, w / WIDTH, h / HEIGHT


def _logit(value: float) -> float:
    return math.log(value / (1 - value))
