"""Kinds of models that edged serves as raw tensors: their names and signatures.

A model is of a kind only if all its tensors match a signature of the kind. Some signatures match many shapes, so at
least one name, number or grid size must also be equal. If a family claims the model, the kind is not used.

Sources: the Open Model Zoo's models/public and models/intel (README.md of each model), the ONNX model zoo (README.md of
each), optimum-onnx (commit 1939f27, `model_configs.py` and `_TASK_TO_COMMON_OUTPUTS`), OpenCV's model zoo (the script
of each model), airockchip/rknn_model_zoo (README.md of YOLOv5, YOLOv6 and YOLOv8), facebookresearch/segment-anything
(`export_onnx_model.py`), snakers4/silero-vad (`OnnxWrapper`), biubug6/Pytorch_Retinaface (`convert_to_onnx.py`),
fabio-sim/LightGlue-ONNX (`cli.py`), argman/EAST (`model.py`, commit 21d68e7), clovaai/CRAFT-pytorch (`craft.py`, commit
60fbdb0). The signatures were read in these sources; only those of silero-vad 6 and of the models in
rapidocr-onnxruntime are verified on files.
"""

from __future__ import annotations

import msgspec

from edged.vision.comparison import Comparison, Tensors, compare
from edged.vision.signatures import Signature, patterns


class Kind(msgspec.Struct, frozen=True):
    """One kind of model. `name` is for programs; `text` is for people and completes "looks like ..."."""

    name: str
    text: str
    signatures: tuple[Signature, ...]


def identify(tensors: Tensors) -> tuple[Kind, Comparison] | None:
    """Return the kind that has the most points in common with a model, and the comparison; of equal kinds, the first.
    Return None if no kind matches."""
    best: tuple[Kind, Comparison] | None = None
    for kind in KINDS:
        for known in kind.signatures:
            found = compare(known, tensors)
            if found.cost == 0 and found.points > (best[1].points if best is not None else 0):
                best = kind, found
    return best


def _grids(*channels: str) -> str:
    """Return the signature of a detector's raw heads: for each grid of stride 8, 16 and 32, one tensor for each of
    `channels`."""
    return ", ".join(f"[N, {each}, H/{stride}, W/{stride}]" for stride in (8, 16, 32) for each in channels)


KINDS = (
    # Texts, sounds, and models that take both texts and pictures.
    Kind(
        "language-model",
        "a language model: it takes token ids, or keys and values of earlier tokens",
        patterns(
            "past_key_values*, ... -> ...",
            "input_ids, ... -> logits [N, L, V], present*, ...",
            "input_ids [N, L], ... -> logits [N, L, V]",
        ),
    ),
    Kind(
        "text",
        "a model of texts: it takes token ids",
        patterns(
            "input_ids, ... -> ...",
            "input_ids [N, L], ... -> last_hidden_state [N, L, D], ...",
            "input_ids [N, L], ... -> start_logits [N, L], end_logits [N, L]",
        ),
    ),
    Kind(
        "picture-and-text",
        "a model of pictures and texts: it compares a picture with texts, or finds what a text names",
        patterns(
            "pixel_values [N, 3, H, W], input_ids, ... -> ...",
            "pixel_values, input_ids, ... -> logits_per_image, logits_per_text, text_embeds, image_embeds, ...",
            "logits [N, Q, T], pred_boxes [N, Q, 4], text_embeds, ...",
        ),
    ),
    Kind(
        "voice-activity",
        "a detector of voice: it takes sound and a state, and usually the sample rate",
        patterns(
            "input, state [2, N, 128], sr -> output, stateN",
            "input, state [2, N, 128] -> output, stateN",
            "input, sr, h, c -> output, hn, cn",
            "input, h, c -> speech_probs, hn, cn",
        ),
    ),
    Kind(
        "audio",
        "a model of sound",
        patterns(
            "input_features [N, bands, T], ... -> ...",
            "input_values [N, L], ... -> ...",
            "[N, 1, 1, L] -> [N, classes]",
        ),
    ),
    # Prompts, pairs of pictures, videos.
    Kind(
        "promptable-segmentation",
        "a part of a model that segments what a prompt points at (Segment Anything)",
        patterns(
            "image_embeddings, point_coords, point_labels, ... -> masks, iou_predictions, ...",
            "image_embeddings, image_positional_embeddings, ... -> iou_scores, pred_masks",
            "batched_images, batched_point_coords, batched_point_labels -> output_masks, iou_predictions",
            "pixel_values, input_points, ... -> iou_scores, pred_masks",
            "image_embeddings, image_positional_embeddings",
            "image_embeddings [N, C, H/16, W/16], ...",
            "embeddings [N, 256, H/16, W/16]",
        ),
    ),
    Kind(
        "optical-flow",
        "a model of the motion between two pictures (optical flow)",
        patterns(
            "[N, 3, H, W], [N, 3, H, W] -> [N, 2, H, W]",
            "[N, 3, H, W], [N, 3, H, W] -> [N, 2, H/8, W/8], [N, 2, H, W]",
        ),
    ),
    Kind(
        "matching",
        "a finder of points that two pictures have in common",
        patterns("keypoints, matches, mscores", "matches, mscores", "keypoints, scores, descriptors"),
    ),
    Kind(
        "matting",
        "a model that cuts out the foreground (matting)",
        patterns("src [N, 3, H, W], ... -> pha, fgr, ...", "pha [N, 1, H, W], fgr [N, 3, H, W], ..."),
    ),
    Kind(
        "inpainting",
        "a model that fills a part of a picture (inpainting)",
        patterns("image [N, 3, H, W], mask [N, 1, H, W] -> [N, 3, H, W]"),
    ),
    # A picture in, a picture or maps out.
    Kind(
        "super-resolution",
        "a super-resolution model: the output is a larger picture",
        patterns(
            "[N, 3, scale*H, scale*W]",
            "[N, 1, H, W] -> [N, 1, scale*H, scale*W]",
            "[N, 3, H, W], [N, 3, scale*H, scale*W] -> [N, 3, scale*H, scale*W]",
        ),
    ),
    Kind(
        "picture",
        "a model that returns a picture (style, restoration or super-resolution)",
        patterns("[N, 3, H, W]", "[N, H, W, 3] -> [N, H, W, 3]", "reconstruction [N, 3, H, W]"),
    ),
    Kind(
        "color",
        "a model that colours a picture",
        patterns("[N, 1, H, W] -> [N, 2, H, W]"),
    ),
    Kind(
        "east",
        "EAST, a detector of text: maps of scores, and of distances to the sides of boxes with angles",
        patterns("[N, 1, H/4, W/4], [N, 5, H/4, W/4]", "[N, H/4, W/4, 1], [N, H/4, W/4, 5]"),
    ),
    Kind(
        "craft",
        "CRAFT, a detector of text: maps of characters and of the links between them, and features",
        patterns("[N, H/2, W/2, 2], [N, 32, H/2, W/2]"),
    ),
    Kind(
        "text-detection",
        "a detector of text: maps of what is text, and of links between pixels",
        patterns("[N, H/4, W/4, 16], [N, H/4, W/4, 2]"),
    ),
    # Poses and landmarks.
    Kind(
        "part-affinity",
        "a model of poses with part affinity fields (OpenPose)",
        patterns(
            "[N, 38, H/8, W/8], [N, 19, H/8, W/8]",
            "[N, 19, H/8, W/8], [N, 38, H/8, W/8]",
            "[N, 57, H/8, W/8], [N, 19, H/8, W/8], [N, 38, H/8, W/8]",
        ),
    ),
    Kind(
        "associative-embedding",
        "a model of poses that groups keypoints by embeddings (HigherHRNet)",
        patterns("heatmaps [N, K, H/2, W/2], embeddings [N, K, H/2, W/2]"),
    ),
    Kind(
        "landmarks",
        "a model of landmarks of a hand or a body (MediaPipe)",
        patterns("[N, 63], [N, 1], [N, 1], [N, 63]", "[N, 195], [N, 1], [N, H, W, 1], [N, h, w, 39], [N, 117]"),
    ),
    # Boxes in forms that edged does not decode.
    Kind(
        "anchor-boxes",
        "a detector of MediaPipe: boxes and keypoints relative to anchors that are not in the file",
        patterns("[N, A, 18], [N, A, 1]", "[N, A, 16], [N, A, 1]", "[N, A, 12], [N, A, 1]"),
    ),
    Kind(
        "retinaface",
        "RetinaFace: boxes and landmarks relative to prior boxes",
        patterns("[N, P, 4], [N, P, 2], [N, P, 10]", "[N, P, 2], [N, P, 4], [N, P, 10]"),
    ),
    Kind(
        "yunet-2022",
        "YuNet before 2023, or a detector of licence plates like it: boxes relative to prior boxes",
        patterns("loc [P, 14], conf [P, 2], iou [P, 1]", "loc [N, P, 14], conf [N, P, 2], iou [N, P, 1]"),
    ),
    Kind(
        "centernet",
        "CenterNet: maps of centres, sizes and offsets",
        patterns(*(f"[N, {classes}, H/4, W/4], [N, 2, H/4, W/4], [N, 2, H/4, W/4]" for classes in ("classes", "1"))),
    ),
    Kind(
        "instance-segmentation",
        "a YOLO with masks whose layout is not decoded: a table of boxes, and prototypes of masks",
        patterns("[N, 3*cells, 37+classes], [N, 32, H/4, W/4]"),
    ),
    Kind(
        "raw-heads",
        "raw heads of a detector, whose decoding was left out of the export (such as the exports for RKNN); export the"
        " detector with its decoding",
        patterns(
            _grids("64", "classes", "1"),
            _grids("64", "classes"),
            _grids("4", "classes", "1"),
            _grids("4", "classes"),
            *(
                ", ".join(f"[N, H/{stride}, W/{stride}, {last}]" for stride in (8, 16, 32))
                for last in ("channels", "3, 5+classes")
            ),
            ", ".join(f"[N, {each}, H/{s}, W/{s}]" for each in ("9*classes", "36") for s in (8, 16, 32, 64, 128)),
        ),
    ),
    Kind(
        "grids",
        "a model whose outputs are grids over the picture: features, keypoints, classes of pixels, or raw heads of a"
        " detector",
        patterns(_grids("channels"), *(f"[N, channels, H/{stride}, W/{stride}]" for stride in (4, 8, 16, 32))),
    ),
    Kind(
        "yolov3-keras",
        "YOLOv3 converted from Keras: boxes, scores and the indices that its NMS selects",
        patterns("input_1?, image_shape [N, 2] -> [N, A, 4], [N, classes, A], [N, K, 3]"),
    ),
    Kind(
        "detections",
        "boxes, labels and scores of an exporter that edged does not know; a detector of torchvision is recognised if"
        " its input is [1, 3, H, W] and its outputs are named boxes, labels and scores",
        patterns(
            "[M, 4], [M], [M]",
            "boxes [M, 5], labels [M]",
            "bboxes [N, K, 4], labels [N, K], scores [N, K]",
            "[N, K, 4], [N, K], [N, K]",
        ),
    ),
    # Numbers about the whole picture.
    Kind(
        "attributes",
        "a model of attributes, such as age or angles: each output has numbers about the whole picture",
        patterns("[N, a, 1, 1], [N, b, 1, 1]", "[N, a, 1, 1], [N, b, 1, 1], [N, c, 1, 1]", "[N, 1], [N, 1], [N, 1]"),
    ),
)
