"""Every form of every exporter: its declared tensors, and the encoder of planted objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edged.tensors import TensorSpec
from edged.vision.family import Recognition, recognise
from edged.vision.placement import Placement, place
from tests.vision_encoders import (
    ANCHORS,
    CELLS,
    CELLS_64,
    CLASSES,
    HEIGHT,
    MOST,
    NAMES,
    STRIDES,
    WIDTH,
    Batch,
    Outputs,
    anchor_rows,
    class_columns,
    columns,
    counted,
    deepstream,
    distance_heads,
    flat,
    grid_rows,
    joined_heads,
    labelled,
    listed,
    logits,
    no_object,
    on_anchors,
    prior_corners,
    prior_offsets,
    priors,
    queries,
    query_classes,
    raw_heads,
    rows_of_seven,
    scored_boxes,
    six,
    tflite,
    token_logits,
    two_heads,
    ultraface_priors,
    yxyx_rows,
)


@dataclass(frozen=True)
class Export:
    """One form of one exporter: the tensors that it declares, and the encoder of its outputs."""

    family: str
    outputs: tuple[TensorSpec, ...]
    encode: Callable[[Batch], Outputs]
    metadata: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[TensorSpec, ...] = (TensorSpec("images", "FP32", ("n", 3, HEIGHT, WIDTH)),)
    operators: frozenset[str] = frozenset({"Conv", "Concat"})
    needs_nms: bool = False  # the outputs are before non-maximum suppression

    @property
    def recognition(self) -> Recognition:
        return recognise(self.inputs, self.outputs, self.metadata, self.settings, self.operators)

    def place(self, width: int, height: int) -> Placement:
        """Return the placement of a picture in the input, according to the recognition."""
        wanted = self.recognition.preprocess
        assert wanted is not None
        return place(width, height, wanted.width, wanted.height, wanted.fit, wanted.zoom)


def spec(name: str, *shape: int | str, datatype: str = "FP32") -> TensorSpec:
    return TensorSpec(name, datatype, shape)


def see(
    export: Export,
    settings: Mapping[str, str] | None = None,
    *,
    outputs: tuple[TensorSpec, ...] | None = None,
    metadata: Mapping[str, str] | None = None,
    inputs: tuple[TensorSpec, ...] | None = None,
    operators: frozenset[str] | None = frozenset({"Conv"}),
) -> Recognition:
    """Recognise an export with some of its facts replaced."""
    return recognise(
        inputs or export.inputs,
        outputs or export.outputs,
        export.metadata if metadata is None else metadata,
        settings or {},
        operators,
    )


# -- all of them ----------------------------------------------------------------------------------------------------

_DETECT = {"task": "detect", "names": str(NAMES), "stride": "32", "imgsz": f"[{HEIGHT}, {WIDTH}]"}
_V5 = {"names": str(NAMES), "stride": "32"}
_FLAGS = {"end2end": "False", "args": "{'batch': 1, 'nms': False}"}
_COUNTED7 = ("num_dets", "det_boxes", "det_scores", "det_classes")
_COUNTED_NAS = ("num_predictions", "pred_boxes", "pred_scores", "pred_classes")
_COUNTED_MM = ("num_dets", "boxes", "scores", "labels")
_PIXEL_VALUES = (TensorSpec("pixel_values", "FP32", ("n", "num_channels", HEIGHT, WIDTH)),)
_PADDLE = (TensorSpec("image", "FP32", ("n", 3, HEIGHT, WIDTH)),)
_BYTES = (TensorSpec("input", "UINT8", ("n", 3, HEIGHT, WIDTH)),)
_INPUT = (TensorSpec("input", "FP32", ("n", 3, HEIGHT, WIDTH)),)
_TABLE = (spec("output0", "n", 4 + CLASSES, CELLS),)
_SIX = (spec("output0", "n", MOST, 6),)
_PRIORS = (
    spec("scores", "n", len(ultraface_priors()), 1 + CLASSES),
    spec("boxes", "n", len(ultraface_priors()), 4),
)


def _counted_specs(names: Sequence[str], classes: str) -> tuple[TensorSpec, ...]:
    count, boxes, scores, ids = names
    lists = spec(boxes, "n", MOST, 4), spec(scores, "n", MOST), spec(ids, "n", MOST, datatype=classes)
    return (spec(count, "n", 1, datatype="INT32"), *lists)


def _set(family: str) -> dict[str, str]:
    """The setting of a family with a higher default score than most, and the score of these."""
    return {"family": family, "thresholds.score": "0.25"}


def _prompts(start: int, end: int) -> str:
    """Return prompts of two words each, with made-up token ids."""
    return ", ".join(f"{name} [{start} {7 + number} {20 + number} {end}]" for number, name in NAMES.items())


_TEXTS = tuple(TensorSpec(name, "INT64", ("texts", "length")) for name in ("input_ids", "attention_mask"))
_OWL = (
    *(spec("logits", "n", MOST, "texts"), spec("pred_boxes", "n", MOST, 4)),
    *(spec("text_embeds", "n", "texts", 8), spec("image_embeds", "n", 4, 4, 8)),
)


def _owl(batch: Batch) -> Outputs:
    embedded = {"text_embeds": (len(batch), CLASSES, 8), "image_embeds": (len(batch), 4, 4, 8)}
    return {
        **logits(CLASSES, "pred_boxes", "logits")(batch),
        **{name: np.ones(shape, np.float32) for name, shape in embedded.items()},
    }


def _queries_of(slots: int) -> tuple[TensorSpec, ...]:
    return spec("logits", "n", MOST, slots), spec("pred_boxes", "n", MOST, 4)


EXPORTS: dict[str, Export] = {
    "ultralytics": Export("ultralytics", _TABLE, columns, {**_DETECT, **_FLAGS}, needs_nms=True),
    "ultralytics without metadata": Export("ultralytics", _TABLE, columns, needs_nms=True),
    "yolov9": Export("ultralytics", _TABLE, columns, _V5, needs_nms=True),
    "yolov9, two heads": Export(
        "ultralytics", (*_TABLE, spec("1770", "n", 4 + CLASSES, CELLS)), two_heads, _V5, needs_nms=True
    ),
    "ultralytics, nms-free": Export("ultralytics-end2end", _SIX, six, {**_DETECT, "end2end": "True"}),
    "ultralytics 8.3.0, nms-free": Export("ultralytics-end2end", _SIX, six, {**_DETECT, "version": "8.3.0"}),
    "ultralytics, nms=True": Export(
        "ultralytics-end2end", _SIX, six, {**_DETECT, "end2end": "False", "args": "{'nms': True}"}
    ),
    "ultralytics rt-detr": Export(
        "rtdetr-ultralytics", _SIX, queries, {**_DETECT, **_FLAGS, "version": "8.4.85", "head": "RTDETRDecoder"}
    ),
    "ultralytics rt-detr, no head": Export(
        "rtdetr-ultralytics", _SIX, queries, {**_DETECT, **_FLAGS, "version": "8.4.47"}
    ),
    "ultralytics rt-detr, classes": Export(
        "rtdetr-ultralytics",
        (spec("output0", "n", MOST, 4 + CLASSES),),
        query_classes,
        {**_DETECT, **_FLAGS, "version": "8.4.46"},
    ),
    "yolov5": Export("yolov5", (spec("output0", "n", 3 * CELLS, 5 + CLASSES),), anchor_rows, _V5, needs_nms=True),
    "yolov7 --grid": Export(
        "yolov5",
        (spec("output", "n", 3 * CELLS, 5 + CLASSES),),
        lambda batch: anchor_rows(batch, name="output"),
        needs_nms=True,
    ),
    "yolov7 --grid, by the setting": Export(
        "yolov7",
        (spec("output", "n", 3 * CELLS, 5 + CLASSES),),
        lambda batch: anchor_rows(batch, name="output"),
        settings={"family": "yolov7"},
        needs_nms=True,
    ),
    "yolov7, end to end": Export("yolov7", _counted_specs(_COUNTED7, "INT32"), counted(_COUNTED7, 0, np.int32)),
    "yolov7 --max-wh": Export("yolov7", (spec("output", "m", 7),), flat("output", class_first=True)),
    "yolov7, raw heads": Export(
        "yolov7",
        tuple(spec(f"head{i}", "n", 3, HEIGHT // s, WIDTH // s, 5 + CLASSES) for i, s in enumerate(STRIDES)),
        raw_heads,
        settings={"decode.anchors": "; ".join(",".join(map(str, row)) for row in ANCHORS)},
        needs_nms=True,
    ),
    "yolov6": Export(
        "yolov6",
        (spec("outputs", "n", CELLS, 5 + CLASSES),),
        lambda batch: anchor_rows(batch, CELLS, name="outputs"),
        needs_nms=True,
    ),
    "yolov6, end to end": Export(
        "yolov6",
        _counted_specs(_COUNTED7, "INT32"),
        counted(_COUNTED7, 0, np.int32),
        settings={"family": "yolov6"},
    ),
    "damo-yolo": Export(
        "damo-yolo",
        (spec("output", "n", CELLS, CLASSES), spec("1234", "n", CELLS, 4)),
        class_columns("1234", "output"),
        needs_nms=True,
    ),
    "damo-yolo, end to end": Export(
        "damo-yolo",
        _counted_specs(_COUNTED7, "INT32"),
        counted(_COUNTED7, 0, np.int32),
        settings=_set("damo-yolo"),
    ),
    "yolox": Export("yolox", (spec("output", "n", CELLS, 5 + CLASSES),), grid_rows, needs_nms=True),
    "yolox, decoded": Export(
        "yolox",
        (spec("output", "n", CELLS, 5 + CLASSES),),
        lambda batch: anchor_rows(batch, CELLS, name="output"),
        operators=frozenset({"Conv", "Exp"}),
        needs_nms=True,
    ),
    "yolo-nas, flat": Export(
        "yolo-nas",
        (spec("graph2_flat_predictions", "m", 7),),
        flat("graph2_flat_predictions", class_first=False),
        inputs=_BYTES,
    ),
    "yolo-nas, batch": Export(
        "yolo-nas", _counted_specs(_COUNTED_NAS, "INT64"), counted(_COUNTED_NAS, -1, np.int64), inputs=_BYTES
    ),
    "rt-detr": Export(
        "rtdetr",
        (spec("labels", "n", MOST, datatype="INT64"), spec("boxes", "n", MOST, 4), spec("scores", "n", MOST)),
        labelled,
        inputs=(
            TensorSpec("images", "FP32", ("n", 3, HEIGHT, WIDTH)),
            TensorSpec("orig_target_sizes", "INT64", ("n", 2)),
        ),
    ),
    "rf-detr, coco": Export(
        "rfdetr", (spec("dets", "n", MOST, 4), spec("labels", "n", MOST, 91)), logits(91), inputs=_INPUT
    ),
    "rf-detr, own classes": Export(
        "rfdetr",
        (spec("dets", "n", MOST, 4), spec("labels", "n", MOST, CLASSES + 1)),
        logits(CLASSES + 1),
        inputs=_INPUT,
    ),
    "transformers, detr": Export(
        "detr",
        _queries_of(CLASSES + 1),
        no_object,
        settings=_set("detr"),
        inputs=(*_PIXEL_VALUES, TensorSpec("pixel_mask", "INT64", ("n", 64, 64))),
    ),
    "transformers, deformable detr": Export(
        "deformable-detr",
        _queries_of(CLASSES),
        logits(CLASSES, "pred_boxes", "logits"),
        settings=_set("deformable-detr"),
        inputs=_PIXEL_VALUES,
    ),
    "transformers, rt-detr": Export(
        "rtdetr-transformers",
        _queries_of(CLASSES),
        logits(CLASSES, "pred_boxes", "logits"),
        settings=_set("rtdetr-transformers"),
        inputs=_PIXEL_VALUES,
    ),
    **{
        f"transformers, {family}": Export(
            family,
            _OWL,
            _owl,
            settings={**_set(family), "prompts": _prompts(49406, 49407)},
            inputs=(*_PIXEL_VALUES, *_TEXTS),
        )
        for family in ("owlvit", "owlv2")
    },
    "transformers, grounding dino": Export(
        "grounding-dino",
        _queries_of(256),
        token_logits,
        settings={"prompts": _prompts(101, 102)},
        inputs=(
            *(*_PIXEL_VALUES, *_TEXTS, TensorSpec("token_type_ids", "INT64", ("texts", "length"))),
            TensorSpec("pixel_mask", "INT64", ("n", "height", "width")),
        ),
    ),
    "rtmdet, mmdeploy": Export(
        "rtmdet",
        (spec("dets", "n", MOST, 5), spec("labels", "n", MOST, datatype="INT64")),
        scored_boxes,
        settings={"family": "rtmdet"},
        inputs=_INPUT,
    ),
    "rtmdet, mmyolo": Export(
        "rtmdet",
        _counted_specs(_COUNTED_MM, "INT32"),
        counted(_COUNTED_MM, -1, np.int32),
        settings={"family": "rtmdet"},
    ),
    "rtmdet, raw heads": Export(
        "rtmdet",
        tuple(
            spec(f"{name}{i}", "n", channels, HEIGHT // s, WIDTH // s)
            for name, channels in (("classes", CLASSES), ("sides", 4))
            for i, s in enumerate(STRIDES)
        ),
        distance_heads,
        settings={"family": "rtmdet"},
        needs_nms=True,
    ),
    "rtmdet, joined heads": Export(
        "rtmdet",
        tuple(spec(f"head{i}", "n", CLASSES + 4, HEIGHT // s, WIDTH // s) for i, s in enumerate(STRIDES)),
        joined_heads,
        settings={"family": "rtmdet"},
        needs_nms=True,
    ),
    "mmdet": Export(
        "mmdet",
        (spec("dets", "n", MOST, 5), spec("labels", "n", MOST, datatype="INT64")),
        scored_boxes,
        settings={"family": "mmdet"},
        inputs=_INPUT,
    ),
    "paddle, nms in the graph": Export(
        "ppyoloe-plus",
        (spec("multiclass_nms3_0.tmp_0", "m", 6), spec("multiclass_nms3_0.tmp_2", "n", datatype="INT32")),
        listed("multiclass_nms3_0.tmp_0", "multiclass_nms3_0.tmp_2"),
        settings=_set("ppyoloe-plus"),
        inputs=(*_PADDLE, TensorSpec("im_shape", "FP32", ("n", 2)), TensorSpec("scale_factor", "FP32", ("n", 2))),
    ),
    "paddle, picodet": Export(
        "picodet",
        (spec("tmp_16", "n", CELLS_64, 4), spec("concat_4.tmp_0", "n", CLASSES, CELLS_64)),
        class_columns("tmp_16", "concat_4.tmp_0", CELLS_64, is_turned=True),
        inputs=_PADDLE,
        needs_nms=True,
    ),
    "paddle, pp-yoloe": Export(
        "picodet",
        (spec("tmp_20", "n", CELLS, 4), spec("concat_14.tmp_0", "n", CLASSES, CELLS)),
        class_columns("tmp_20", "concat_14.tmp_0", is_turned=True),
        settings=_set("picodet"),
        inputs=(*_PADDLE, TensorSpec("scale_factor", "FP32", ("n", 2))),
        needs_nms=True,
    ),
    "efficientdet, automl": Export(
        "efficientdet",
        (spec("detections:0", "n", MOST, 7),),
        yxyx_rows,
        inputs=(TensorSpec("image_arrays:0", "UINT8", ("n", HEIGHT, WIDTH, 3)),),
    ),
    "efficientdet, pytorch": Export(
        "efficientdet",
        (
            spec("regression", "n", CELLS, 4),
            spec("classification", "n", CELLS, CLASSES),
            spec("anchors", 1, CELLS, 4),
        ),
        on_anchors,
        settings={"family": "efficientdet"},
        inputs=_INPUT,
        needs_nms=True,
    ),
    "deepstream-yolo": Export(
        "deepstream-yolo", (spec("output", "n", CELLS, 6),), deepstream, inputs=_INPUT, needs_nms=True
    ),
    "ssd, priors": Export(
        "ssd",
        (spec("scores", "n", CELLS, 1 + CLASSES), spec("boxes", "n", CELLS, 4)),
        priors,
        inputs=_INPUT,
        operators=frozenset({"Exp"}),
        needs_nms=True,
    ),
    "ultraface": Export(
        "ultraface", _PRIORS, prior_corners, inputs=_INPUT, operators=frozenset({"Exp"}), needs_nms=True
    ),
    "ultraface, offsets": Export("ultraface", _PRIORS, prior_offsets, inputs=_INPUT, needs_nms=True),
    "ssd, openvino": Export("ssd", (spec("detection_out", 1, 1, "m", 7),), rows_of_seven),
    "ssd, tflite": Export(
        "ssd",
        (
            spec("detection_boxes", "n", MOST, 4),
            spec("detection_classes", "n", MOST),
            spec("detection_scores", "n", MOST),
            spec("num_detections", "n"),
        ),
        tflite,
        inputs=(TensorSpec("image", "UINT8", ("n", HEIGHT, WIDTH, 3)),),
    ),
}
